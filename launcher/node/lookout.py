"""What the nodes say of themselves while an attempt goes on, and what node 0 makes of it: preflight, samples, hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from launcher.node.hang.watch import HANG, HangWatch, Suspicion
from launcher.node.journal import Journal
from launcher.node.member import Event, say
from launcher.node.place import Place
from launcher.node.roster import Roster
from launcher.node.verdict import Findings
from launcher.node.watching import Watch
from launcher.plan.plan import Plan
from launcher.records.preflight import ERROR, Finding, NodeReport, all_reduce_line, compare


class Lookout:
    """Over the nodes of one attempt. A context manager: within it somebody looks whether the run moves."""

    KINDS = ("preflight", "sample", "pulse", "facts")
    """Of the events that are for it."""

    def __init__(
        self, plan: Plan, place: Place, nodes: Sequence[int], roster: Roster, findings: Findings, journal: Journal,
        look: Callable[[int], None], stop: Callable[[str, float], None],
    ) -> None:  # fmt: skip
        """`look` has this node look into its ranks; `stop` has all ranks stopped, for a reason and with a grace."""
        self._place, self._roster, self._findings, self._journal = place, roster, findings, journal
        self._look, self._stop, self._resting = look, stop, False
        self._grace_s = plan.budgets.failure_grace_s
        self._hosts = [place.hosts[node] for node in nodes]
        self._reports: dict[str, NodeReport] = {}  # of their preflight, by host
        self._watch = Watch(plan, dict(zip(nodes, self._hosts)))
        self._hangs = HangWatch.over(plan, nodes, place.hosts, self._ask_all, self._tell_of_hang)

    def __enter__(self) -> Lookout:
        self._hangs.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hangs.__exit__(*error)

    def rest(self) -> None:
        """The ranks are being stopped: they may stand still, and nothing ends them any more."""
        self._resting = True

    def take(self, event: Event) -> None:
        """What a node says."""
        if event.kind == "preflight":
            self._look_at(NodeReport.from_message(event.body))
        elif event.kind == "sample":
            self._warn(self._watch.take(event.node, event.body))
        else:
            self._hangs.take(event.kind, event.node, event.body)

    def _look_at(self, report: NodeReport) -> None:
        """Say what is wrong with a node, and end what would fail or hang on it."""
        self._reports[report.host] = report
        everybody = [self._reports[host] for host in self._hosts if host in self._reports]
        everybody = everybody if len(everybody) == len(self._hosts) else []
        findings, speed = [*report.findings, *compare(everybody)], all_reduce_line(everybody)
        self._journal.preflight(report, findings, speed)
        if speed:
            say(self._place, speed)
        self._say(findings)
        errors = [finding for finding in findings if finding.severity == ERROR]
        if errors and not self._resting:
            self._findings.unfit += errors
            self._roster.reject(finding.host for finding in errors)
            self._stop("preflight", 0.0)

    def _warn(self, findings: Sequence[Finding]) -> None:
        """Say what is silently wrong; the ranks go on."""
        self._findings.warnings += findings
        for one in findings:
            self._journal.note("warning", **vars(one))
        self._say(findings)

    def _say(self, findings: Sequence[Finding]) -> None:
        for one in findings:
            say(self._place, f"{one.severity} on {one.host}: {one.message} [{one.check}]")

    def _ask_all(self, question: int) -> None:
        self._roster.broadcast("look", {"question": question})
        self._look(question)

    def _tell_of_hang(self, event: str, suspicion: Suspicion | None) -> None:
        """What the watch finds."""
        if self._resting:
            return
        facts: dict[str, Any] = {} if suspicion is None else suspicion.to_record()
        self._findings.suspicion, self._findings.hung = suspicion, event == HANG
        self._journal.note(event, **facts)
        say(self._place, "it moves again" if suspicion is None else suspicion.line(event))
        if event == HANG:
            self._stop("hang", self._grace_s)
