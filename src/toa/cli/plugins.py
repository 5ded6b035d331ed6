"""Commands that other installed packages add to `toa`; a module is imported when a command or the help needs it."""

from typing import Any

import typer
from typer.core import TyperGroup

from toa._plugins import PluginError, load_plugin, plugin_entries
from toa.cli.terminal import Command

GROUP = "toa.commands"


class PluginGroup(TyperGroup):
    """The commands of this package, then those of other packages; a name that both have is the command of this one.

    A command that cannot be loaded is listed with the reason, and prints it as its error.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, in the order of the help."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in plugin_entries(GROUP) if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none."""
        if cmd_name not in self.commands:
            unknown = cmd_name not in plugin_entries(GROUP)
            # for an unknown name all, so that the error can suggest a similar one
            for name in plugin_entries(GROUP) if unknown else [cmd_name]:
                self.commands.setdefault(name, _load_command(name))
        return super().get_command(ctx, cmd_name)


def subcommands(command: Any) -> dict[str, Any]:
    """The commands of a group by name, those of other packages included; none for a single command."""
    if not isinstance(command, TyperGroup):
        return {}
    return {name: command.get_command(None, name) for name in command.list_commands(None)}  # type: ignore[arg-type]


def _load_command(name: str) -> Any:
    try:
        app = load_plugin(GROUP, name)
        if not isinstance(app, typer.Typer):
            raise PluginError(f"{name!r} of {GROUP} must be a typer app, got {type(app).__name__}.")
        commands = typer.main.get_group(app).commands
        if name not in commands:
            raise PluginError(f"{name!r} of {GROUP} must be a command of its app, got {', '.join(commands)}.")
        return commands[name]
    except PluginError as error:
        return _broken_command(name, error)


def _broken_command(name: str, error: PluginError) -> Command:
    """A command that takes any words and prints an error."""

    def fail() -> None:
        raise error

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return Command(name, callback=fail, help=f"Cannot be used: {error}", context_settings=settings)
