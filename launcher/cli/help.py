"""The help that teaches: what to type, and what there is to choose from."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.config.directories import CONFIG_DIR_VARIABLE, group_options

_TEXT = """\
Train reinforcement-learning and PyTorch jobs: here, or on a Slurm cluster, with the same command.

usage: python -m launcher [KEY=VALUE ...]          start a run
       python -m launcher -m [KEY=V1,V2 ...]       a sweep: a run for every combination
       python -m launcher VERB ...                 look after runs; VERB --help says more

first steps
  python -m launcher                              train cartpole on this machine
  python -m launcher cluster.nproc_per_node=2     the same on two ranks
  python -m launcher cluster=a100x2               submit it to Slurm; returns at once
  python -m launcher cluster=a100x2 cluster.nodes=4 wait=true
                                                  4 nodes, 8 ranks; follow it to its end
  python -m launcher task=script library=torchrun task.path=train.py 'task.args=[--epochs, 3]'
                                                  a script of your own, as torchrun would start it
  python -m launcher -m seed=1,2,3 cluster=a100x2 a sweep: one Slurm array
  python -m launcher cluster=a100x2 dry_run=true  show what would happen; start nothing

verbs
  plan [KEY=VALUE ...]       the same as dry_run=true; --json for programs
  render [-m] [KEY=VALUE ...] -o FILE [--template FILE]
                             the job as a script for sbatch, from a template of yours or ours
  commands cluster.hosts=[a,b] [KEY=VALUE ...]
                             one command for each host, for machines without a scheduler
  status [RUN ...]           what runs, how far it is, why it waits, how it ended; --watch is a screen that follows,
                             --failed, --since 2d, --sweep S choose, --json for programs
  logs RUN                   what rank 0 printed; -f follows, --rank R, --all, --node N choose, --grep picks lines;
                             --errors: the first error first
  why RUN                    its story: what happened when and where, the first traceback, what it means, what to do
  report RUN|SWEEP [-o FILE] one page to look at, to keep and to send: curves, nodes, what happened, configuration
  cancel RUN ...             let a run save and stop, one or all of a sweep; --now does not let it save
  resume RUN                 start it again from its newest checkpoint; of a sweep what has not completed (--failed)
  rerun RUN [KEY=VALUE ...]  the same again, from the run's records and its snapshot of the code
  note RUN TEXT              a remark, kept with the run; shown by why and report
  rm RUN ...                 remove runs from the disk; asks, and never removes one that waits or runs
  prune --older 30d [--keep-best]
                             remove old runs; lists them with their sizes, and asks
  doctor [KEY=VALUE ...]     what is wrong with this machine or, with cluster=NAME, with nodes of that cluster, before
                             a run finds out; --full sums numbers over all ranks, too; --json for programs
  profile [--partition P] > FILE
                             a cluster profile, written by asking Slurm; --probe asks a node too
  nccl list | explain TEXT   known settings of NCCL; those that fit an error text (- reads standard input)
  nccl diagnose [KEY=VALUE ...]
                             which groups of ranks do not talk to each other, and which settings cure it
  completion bash|zsh        a script for the shell: the Tab key completes verbs, runs, keys and choices
  bench startup|runtime|training [KEY=VALUE ...]
                             how fast this starts, steps, learns with all its ranks
  bench scaling [KEY=VALUE ...]
                             the same on more and more ranks, as a table and a picture; bench --help says more
  RUN is a run's id, a unique beginning of it, its directory, or its Slurm job's id; a sweep is named in the same ways.

choices
{choices}

often used keys
  nccl=[NAME,...] in place of the profile's list, nccl=[+NAME,-NAME] to change it
  seed=N  max_iterations=N (the total)  num_envs=N (per rank)  name=TEXT  runs_dir=DIR
  resume=latest|RUN|DIR      start from a checkpoint
  sweep.parallel=N (runs at a time)  sweep.pack=N (one-GPU runs per allocation)  sweep.metric=NAME
  snapshot=git|off           run from a copy of the code (jobs from a git repository do) or not
  cluster.nodes=N  cluster.nproc_per_node=N  cluster.time=1:30:00  cluster.partition=NAME
  cluster.container.runtime=pyxis|apptainer|charliecloud  cluster.container.image=IMAGE
  cluster.spare_nodes=N (take a lost one's place)  cluster.nodes=2-4 (elastic)
  retry.crash=N  retry.node_fail=N|unlimited  checkpoint.every=N (iterations)  checkpoint.minutes=N
  notify.mail=ADDRESS  notify.webhook=VARIABLE  notify.command=[...]  notify.when=end|failure
  cluster.device=cpu|cuda    cluster.env.NAME=VALUE  agent.KEY=VALUE (the library's own hyperparameters)
  python -m launcher --cfg job   shows all of them

options
  --config-dir DIR           more tasks, clusters and libraries, from your own directory
                             ({variable}=DIR does the same for good)
  --config-name NAME         the whole configuration from NAME.yaml there, as in a run's config.yaml
  --cfg job|hydra|all, --info, --hydra-help, --shell-completion
                             Hydra's own
  -h, --help    --version

exit codes: 0 fine, 1 the run failed, 2 a mistake in the command, 3 Slurm refused or is not there, 130 Ctrl-C"""


def help_text(config_dirs: Sequence[str]) -> str:
    """The help, with the choices that the configuration directories offer right now."""
    options = group_options(config_dirs)
    choices = "\n".join(f"  {group + '=':<10}{'  '.join(names)}" for group, names in options.items())
    return _TEXT.format(choices=choices, variable=CONFIG_DIR_VARIABLE)


def help_of(verb: str) -> str:
    """The help of a verb that composes a run."""
    return _VERBS[verb] + _KEYS


_KEYS = """

KEY=VALUE are those of a run (`python -m launcher --help`, docs/configuration.md); --config-dir DIR and
--config-name NAME work as there."""
_VERBS = {
    "plan": """\
usage: python -m launcher plan [KEY=VALUE ...] [--json]

Show what a run would be, and start nothing: resources, the header for sbatch, the command on every node, each variable
of the ranks with where it comes from; where Slurm can be asked, when it could start. dry_run=true does the same on any
command.

  python -m launcher plan task=ant cluster=a100x2 cluster.nodes=4
  python -m launcher plan task=ant cluster=a100x2 --json     for programs""",
    "render": """\
usage: python -m launcher render [-m] [KEY=VALUE ...] -o FILE [--template FILE]

Write a run, or with -m a sweep as one array, as a script for sbatch. The script does the same as a submission; its run
has its directory already. -o - prints it. --template takes a script of yours with our fields in it (docs/templates.md).

  python -m launcher render task=ant cluster=a100x2 -o run.sbatch && sbatch run.sbatch
  python -m launcher render -m task=ant seed=1,2,3 cluster=a100x2 -o sweep.sbatch""",
    "commands": """\
usage: python -m launcher commands cluster.hosts=[A,B] [KEY=VALUE ...]

Print one command for each host, for machines without a scheduler. Whoever starts them, in any order and within
watch.rendezvous seconds of each other, has the run; the first host is rank 0's.

  python -m launcher commands task=ant cluster.hosts=[gpu1,gpu2] cluster.gpus_per_node=8
  python -m launcher commands task=ant 'cluster.hosts=gpu[1-4]' cluster.gpus_per_node=8""",
    "doctor": """\
usage: python -m launcher doctor [KEY=VALUE ...] [--full] [--json]

Look at this machine or, with cluster=NAME, at nodes of that cluster, as every run does before its ranks start: GPUs,
memory, CPUs, disks, names, interfaces, clocks, and what the nodes differ in (docs/diagnosis.md). --full starts torch,
too, and sums numbers over all ranks. Exit code 1 where something would fail or hang.

  python -m launcher doctor
  python -m launcher doctor cluster=a100x2 cluster.nodes=4 --full
  python -m launcher doctor cluster=a100x2 'cluster.nodelist=gpu[07-08]' cluster.nodes=2 --json""",
}
