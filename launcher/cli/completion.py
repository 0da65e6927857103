"""``completion``: what a shell is told once, and what it asks at every press of the Tab key."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from launcher.cli.candidates import SHELLS, candidates, split
from launcher.cli.parser import parser_of

_TEXT = """\
Completion of verbs, runs, keys and choices, for `python -m launcher`, and for a function or an alias of the name
`launcher`, in any directory.

  eval "$(python -m launcher completion bash)"       in ~/.bashrc
  eval "$(python -m launcher completion zsh)"        in ~/.zshrc, after compinit"""

_BASH = """\
_launcher_completion() {
    local line=${COMP_LINE:0:COMP_POINT} python=${COMP_WORDS[0]} word
    case $line in
        launcher\\ *) python=@PYTHON@; line=${line#launcher } ;;
        *\\ -m\\ launcher\\ *) line=${line#* -m launcher } ;;
        *) if declare -F _python >/dev/null; then _python "$@"; fi; return ;;
    esac
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <("$python" -m launcher completion bash --line "$line" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.] ]]; then compopt -o nospace; fi
}
complete -o default -F _launcher_completion python python3 launcher
"""

_ZSH = """\
_launcher_completion() {
    local line=$LBUFFER python=$words[1]
    case $line in
        launcher\\ *) python=@PYTHON@; line=${line#launcher } ;;
        *\\ -m\\ launcher\\ *) line=${line#* -m launcher } ;;
        *) (( $+functions[_python] )) && _python; return ;;
    esac
    local -a found ended open
    found=("${(@f)$("$python" -m launcher completion zsh --line "$line" 2>/dev/null)}")
    open=(${(M)found:#*[=.]}) ended=(${found:#*[=.]})
    (( $#open )) && compadd -Q -S '' -a open
    (( $#ended )) && compadd -Q -a ended
    (( $#open + $#ended )) || _files
}
compdef _launcher_completion python python3 launcher
"""


def completion(argv: Sequence[str]) -> int:
    """``completion bash|zsh``: the script for the shell; with ``--line TEXT`` the words that could end that line."""
    parser = parser_of("completion", _TEXT)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = None
    parser.add_argument("shell", choices=SHELLS)
    parser.add_argument("--line", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.line is None:
        script = _BASH if options.shell == "bash" else _ZSH
        print(script.replace("@PYTHON@", shlex.quote(sys.executable)), end="")
        return 0
    words = split(options.line)
    skipped = _before_the_last_break(words[-1]) if options.shell == "bash" else 0
    for one in candidates(words):
        print(one[skipped:])
    return 0


def _before_the_last_break(word: str) -> int:
    """bash takes = and : for the end of a word, and puts in what comes after them."""
    return max(word.rfind(sign) for sign in "=:") + 1
