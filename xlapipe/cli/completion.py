"""Print a script that completes commands in a shell.

eval "$(xlapipe completion bash)"
    in ~/.bashrc; for zsh in ~/.zshrc
xlapipe completion fish | source
    in fish
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence

from xlapipe.cli.options import Options
from xlapipe.cli.output import print_json, print_text

SHELLS = ("bash", "zsh", "fish")
# Options are completed first where the word begins with a dash, otherwise files.
_BASH = """\
_xlapipe() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words=""
  if [ "$COMP_CWORD" = 1 ]; then
    words="{commands}"
  else
    case "$command" in
{cases}
    esac
  fi
  case "$word" in
    -*) ;;
    *) [ "$COMP_CWORD" = 1 ] || words="" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _xlapipe xlapipe"""

OPTIONS: Options = {"shell": {"choices": SHELLS}}


def run(options: argparse.Namespace) -> int:
    from xlapipe.cli import all_commands

    options_of = options_by_command(all_commands())
    if options.json:
        print_json({"commands": options_of})
        return 0
    for line in script_lines(options.shell, options_of):
        print_text(line)
    return 0


def options_by_command(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The long options of each command."""
    (subparsers,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    return {
        name: sorted(
            option
            for action in command._actions
            for option in action.option_strings
            if option.startswith("--")
        )
        for name, command in subparsers.choices.items()
    }


def script_lines(shell: str, options_of: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The script for a shell."""
    if shell == "fish":
        names = " ".join(options_of)
        yield f"complete -c xlapipe -n __fish_use_subcommand -f -a '{names}'"
        for name, options in options_of.items():
            for option in options:
                condition = f"__fish_seen_subcommand_from {name}"
                yield f"complete -c xlapipe -n '{condition}' -l {option.removeprefix('--')}"
        return
    if shell == "zsh":
        yield "autoload -U +X compinit && compinit"
        yield "autoload -U +X bashcompinit && bashcompinit"
    cases = "\n".join(
        f'      {name}) words="{" ".join(options)}" ;;' for name, options in options_of.items()
    )
    yield from _BASH.format(commands=" ".join(options_of), cases=cases).splitlines()
