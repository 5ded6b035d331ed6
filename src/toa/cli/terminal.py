"""Shared by all commands: options, errors in one line, help texts that list registries, and users' own files."""

import os
import re
import shlex
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand

from toa._checks import (
    Argument,
    ArgumentError,
    ArgumentWarning,
    MissingFileError,
    check_choice,
    check_count,
    check_positive,
)
from toa._console import is_first, make_console, show_controls

if TYPE_CHECKING:
    import pandas as pd

    from toa.estimators import AnomalyDetector, Classifier, Forecaster
    from toa.estimators.base import Estimator

T = TypeVar("T", bound="Estimator")

# help of the options, by command; "options" has those of several commands
HELP: dict[str, dict[str, str]] = {"options": {}}
# arguments of Python whose option has another name
OPTION_NAMES = {"X": "data", "model": "method", "test_size": "test"}
# arguments that `toa run` sets with --set
SETTINGS = ("allow_constant", "fill", "missing_values", "split")
# names that a help text may use in braces, each with the registry or the function that lists the choices
CHOICES: dict[str, str] = {}
# options that are counts of at least 1
_COUNTS = ("horizon", "lookback", "season", "seeds", "epochs", "window", "min_length")
# options of reading a table
_READING = ("id", "time", "values", "freq", "missing", "missing_values", "day_first", "time_zone")
# among the options of a command, the error of a model that could not be saved
SAVE_ERROR = "save error"


def add_help(file: Traversable) -> None:
    """Add the help texts of a package's commands; `help.toml` of this folder describes the format."""
    sections = tomllib.loads(file.read_text(encoding="utf-8"))
    tables = {"choices": CHOICES, "options": HELP["options"]}
    for name, texts in sections.items():
        table = tables[name] if name in tables else HELP.setdefault(name, {})
        if repeated := table.keys() & texts.keys():
            raise ArgumentError(f"help of {name}", "be given once", f"{', '.join(sorted(repeated))} again in {file}")
        table.update(texts)


add_help(files("toa.cli") / "help.toml")


@contextmanager
def clear_errors(params: Sequence[Any] = (), *, resumes: bool = False) -> Iterator[None]:
    """Print an error in one line and exit with 2; exit with 130 after Ctrl-C; print warnings in one line.

    Args:
        params: Parameters of the command, which replace arguments of Python in errors and warnings.
        resumes: Whether repeating the command resumes its work.
    """
    show = warnings.showwarning
    printed: set[str] = set()

    def echo(text: Warning | str, kind: type[Warning], *where: Any, **more: Any) -> None:
        if kind not in (UserWarning, ArgumentWarning):
            show(text, kind, *where, **more)
        elif str(text) not in printed:
            # a table is read several times
            printed.add(str(text))
            typer.echo(f"warning: {show_controls(with_options(text, params))}", err=True)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = echo  # type: ignore[assignment]
            yield
    except (ValueError, FloatingPointError, OSError, ImportError) as error:
        typer.echo(f"error: {show_controls(with_options(error, params))}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stopped:
        if is_first():
            remedy = "; repeat the command to resume" if resumes else ""
            typer.echo(f"{str(stopped) or 'stopped'}{remedy}.", err=True)
        raise typer.Exit(130) from None


@contextmanager
def shown_as(argument: str, name: str) -> Iterator[None]:
    """Show an argument as the option or the thing that it is in a command, where that differs from its own name."""
    try:
        yield
    except ArgumentError as error:
        raise error.rename(argument, name) from None


def with_options(message: Exception | str, params: Sequence[Any]) -> str:
    """The text of an error or a warning, with the options of a command in place of arguments."""
    option_of = partial(find_option, params)
    if isinstance(message, ArgumentError):
        return message.show(option_of)
    if isinstance(message, ArgumentWarning | MissingFileError):
        return message.phrase.show(option_of)
    return str(message)


def find_option(params: Sequence[Any], argument: Argument) -> str | None:
    """The option of a command for an argument of Python: --missing ffill for missing='ffill'; None without one."""
    if argument.name.startswith("--"):
        return str(argument)
    by_name = {param.name: param for param in params}
    name = argument.name.partition("[")[0]
    name = OPTION_NAMES.get(name, name)
    if name in SETTINGS and "change" in by_name and argument.value is not None:
        return f"--set {name}={str(argument.value).lower()}"
    if name not in by_name:
        return None
    param = by_name[name]
    if not param.opts[0].startswith("-"):
        return str(param.name).upper() if argument.value is None else None
    if argument.value is False:
        return param.secondary_opts[0] if param.secondary_opts else None
    flag = str(param.opts[0])
    return flag if argument.value in (None, True) else f"{flag} {shlex.quote(str(argument.value))}"


class _Output:
    """Standard output that discards text once its reader, such as `head`, has left: results are still written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call: Callable[..., Any], *text: str) -> None:
        try:
            call(*text)
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)


def list_choices(name: str) -> list[str]:
    """The choices of a name in `CHOICES`."""
    module, attribute, *arguments = CHOICES[name].split(":")
    listed = attrgetter(attribute)(import_module(module))
    return list(listed(*arguments) if arguments else listed)


class Command(TyperCommand):
    """A command that prints errors in one line, and whose help is in `HELP`, with `{name}` for the choices of a name.

    Registries import torch, so they are read only when the help of the command is shown.
    """

    # whether repeating the command resumes its work
    resumes = False

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        for param in self.params:
            param.help = HELP.get(name, {}).get(param.name, HELP["options"].get(param.name))  # type: ignore[attr-defined]

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        # a command that resumes may end with its reader; a closed output is None
        output: Any = sys.stdout if self.resumes or sys.stdout is None else _Output(sys.stdout)
        with redirect_stdout(output), clear_errors(self.params, resumes=self.resumes):
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Fill in the choices, then write the help."""
        for param in self.params:
            if text := getattr(param, "help", None):
                param.help = re.sub(r"\{(\w+)\}", lambda match: ", ".join(list_choices(match[1])), text)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


class ResumableCommand(Command):
    """A command that resumes its work if it is repeated."""

    resumes = True


def check_files(*paths: Path | None) -> None:
    """Raise OSError for a missing file or a folder; None is none. Commands call it before heavy imports."""
    for path in paths:
        if path is not None and path.is_dir():
            raise IsADirectoryError(f"{path} must be a file to read, got a folder; name a file in it.")
        if path is not None and path.exists() and not path.is_file():
            raise ArgumentError(path, "be a file to read", "a device or a pipe", "copy its content to a file")
        if path is not None and not path.is_file():
            raise FileNotFoundError(f"No such file: {path}.")


def check_destinations(*paths: Path | None) -> None:
    """Raise ValueError for a file that cannot be written; None is none. Commands call it before training."""
    from toa._files import check_replaceable, check_writable

    for path in paths:
        if path is not None:
            check_replaceable(path)
            check_writable(Path(os.path.realpath(path)).parent)
            if path.exists() and not os.access(path, os.W_OK):
                raise ArgumentError(path, "be a file that can be written", "one that cannot", "choose another")


def check_results(options: dict[str, Any], *tables: str) -> None:
    """Check the files that a command writes, before training; the picture is by default beside the first table.

    Args:
        options: Options of the command; `tables` names those of the tables.

    Raises:
        ValueError: For an ending that is no format of its kind, a file that cannot be written, or one that the command
            also reads or writes for another purpose.
        ImportError: For a format without its package.
    """
    from toa._files import check_ending

    for name in tables:
        with shown_as("a table", f"--{name}"):
            check_ending(options[name])
    options["picture"] = options["picture"] or options[tables[0]].with_suffix(".png")
    picture, page = options["picture"], options["page"]
    formats = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp")
    if picture.suffix.lower() not in formats:
        raise ArgumentError("--picture", f"end in {', '.join(formats)}", repr(picture.name))
    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise ArgumentError("--page", "end in .html", repr(page.name))
    written = {name: options[name] for name in (*tables, "picture", "page", "save") if options[name] is not None}
    check_destinations(*written.values())
    taken = {path.resolve(): name for name, path in options.items() if isinstance(path, Path) and name not in written}
    for name, path in written.items():
        if (other := taken.get(path.resolve())) is not None:
            file = "the data" if other == "data" else f"--{other}"
            raise ArgumentError(f"--{name}", f"be another file than {file}", f"{path} for both", "name another")
        taken[path.resolve()] = name


def check_fit_options(options: Mapping[str, Any]) -> None:
    """Raise ValueError for an effort, a count or a time that no fit takes, before heavy imports."""
    from toa.estimators.effort import EFFORTS

    if options.get("effort") is not None:
        check_choice("effort", options["effort"], EFFORTS)
    for name in _COUNTS:
        if options.get(name) is not None:
            check_count(name, options[name], 1)
    if options.get("time_limit") is not None:
        check_positive("time_limit", options["time_limit"])


def check_table(frame: "pd.DataFrame", options: Mapping[str, Any], **reading: Any) -> None:
    """Raise ValueError for a table that a fit could not read, before heavy imports.

    Args:
        options: Options of the command; those of reading a table are used.
        reading: Further arguments of `toa.data.frames.read_panel`.
    """
    from toa.data.frames import read_panel

    chosen = {name: options[name] for name in _READING if options.get(name) not in (None, [])}
    with warnings.catch_warnings():
        # the fit reads the table again, and warns
        warnings.simplefilter("ignore")
        read_panel(frame, **{**chosen, **reading})


def check_share(option: str, value: float | None) -> None:
    """Raise ValueError for a share outside (0, 1); None is none."""
    if value is not None and not 0.0 < value < 1.0:
        remedies = [f"for {value:g} % give {option} {value / 100:g}"] if 1.0 < value < 100.0 else []
        raise ArgumentError(option, "lie in (0, 1)", f"{value:g}", *remedies)


def read_data(path: Path, options: Mapping[str, Any] | None = None, *, label: bool = False) -> "pd.DataFrame":
    """Read a table with a header: text, parquet, feather, Excel or JSON lines, see `toa.data.formats`.

    Args:
        options: Options of the command; --decimal and --sheet are used, the latter for Excel files only, and the names
            of the columns of ids and, with `label`, of classes, which those of --model replace.
    """
    from pandas.api.types import is_integer_dtype

    from toa.data.formats import read_frame
    from toa.data.layouts import LAYOUTS

    chosen = dict(options or {})
    has_text_ids = False
    if chosen.get("model") is not None:
        from toa.estimators.files import saved_columns

        columns = saved_columns(chosen["model"])
        chosen |= {"id": columns.id, "label": columns.label}
        has_text_ids = columns.has_text_ids
    names = [chosen.get(name) for name in ("id", *(["label"] if label else []))]
    names += [layout.id for layout in LAYOUTS]
    # another file of the command may be the workbook
    data = chosen.get("data")
    sheet = chosen.get("sheet") if path == data or path.suffix.lower() in (".xlsx", ".xlsm") else None
    frame = read_frame(path, decimal=chosen.get("decimal"), sheet=sheet, names=[name for name in names if name])
    if has_text_ids and names[0] in frame and is_integer_dtype(frame[names[0]]):
        # beside "007" an id such as 123 is text, also in a table without the former
        frame[names[0]] = frame[names[0]].astype(str)
    return frame


def read_cases_file(path: Path, options: Mapping[str, Any] | None = None) -> tuple[Any, list[str] | None]:
    """Cases (C, l) and labels of a .ts file, or the frame of any other file and None; see `read_data`."""
    if not path.name.endswith((".ts", ".ts.gz")):
        return read_data(path, options, label=True), None
    from toa.data import read_ts

    cases = read_ts(path)
    assert cases.labels is not None
    return [case.T for case in cases.values], cases.labels.tolist()


def fitted(
    kind: type[T],
    options: MutableMapping[str, Any],
    data: Any,
    labels: Any = None,
    *,
    test: float = 0.0,
    check: Callable[[T], None] | None = None,
) -> T:
    """Load an estimator from the file --model, or fit one to data, and save it in the file --save, if any.

    Args:
        options: Options of the command. Those that are arguments of the constructor are used; unset ones are defaults.
            If the estimator cannot be saved, the error is added; `raise_save_error` raises it after the results.
        test: Share of the rows that a forecaster leaves out for `backtest`.
        check: Called with the estimator before it is fitted.

    Raises:
        ValueError: If an option is given together with --model, whose estimator has its own options.
        KeyboardInterrupt: After Ctrl-C. A classifier has saved its best model so far, if there is a file for it.
    """
    device, model, save = (options[name] for name in ("device", "model", "save"))
    unset = {name: False if item.default is False else None for name, item in signature(kind).parameters.items()}
    chosen = {name: options[name] for name in unset if name in options and name not in ("device", "model")}
    arguments = {name: value for name, value in chosen.items() if value is not unset[name] and value not in (None, [])}
    if model is not None:
        # how to read this table, not the one of fit
        names = ("day_first", "time_zone", "missing", "missing_values")
        dates = {name: arguments.pop(name) for name in names if name in arguments}
        arguments.pop("progress", None)
        for name in (*arguments, *(name for name in ("network_only", "method") if options.get(name))):
            raise ValueError(f"--{name.replace('_', '-')} goes with training, got it beside --model; leave it out.")
        estimator = kind.load(model, device=None if device == "auto" else device).set_params(**dates)
    else:
        if options.get("network_only") or options.get("method"):
            arguments["model"] = options.get("method") or "toa"
        estimator = kind(**arguments, device=device)
        if check is not None:
            check(estimator)
        try:
            if test:
                from toa.estimators.backtest import without_last

                data = without_last(estimator.read(data), data, test, estimator.horizon)
            estimator.fit(data, labels)
        except KeyboardInterrupt as stopped:
            from toa.estimators.classifier_fitting import FitStopped

            # other estimators choose weights or a threshold only at the end
            if save is None or not isinstance(stopped, FitStopped) or stopped.fitted is None:
                raise
            estimator.fitted_ = stopped.fitted
            estimator.save(save)
            raise KeyboardInterrupt(f"{stopped}; the best model so far is in {save}") from None
    if save is not None:
        try:
            # first, because later steps of the command may fail
            estimator.save(save)
        except OSError as error:
            # a full disk may have space for the results, which are smaller
            options[SAVE_ERROR] = error
    return estimator


def raise_save_error(options: Mapping[str, Any]) -> None:
    """Raise the error of a model that `fitted` could not save, after the results are written."""
    error = options.get(SAVE_ERROR)
    if error is not None:
        raise error


def without_extra_columns(
    frame: "pd.DataFrame", estimator: "Forecaster | AnomalyDetector | Classifier", *used: str | None
) -> "pd.DataFrame":
    """Drop columns of numbers that a loaded model does not use, and print their names."""
    import pandas as pd

    if estimator.values is not None or not any(name in frame for name in estimator.columns_):
        # it was fitted with the names of its columns and reads no others; or reading names those that are missing
        return frame
    roles = (estimator.id, getattr(estimator, "id_", None), estimator.time, getattr(estimator, "time_", None))
    needed = {*estimator.columns_, *roles, *used}
    extra = [name for name in frame if name not in needed and pd.api.types.is_numeric_dtype(frame[name])]
    if extra:
        typer.echo(f"not used, because the model has no such column: {show_controls(', '.join(map(str, extra)))}")
    return frame.drop(columns=extra)


def write_results(
    options: Mapping[str, Any],
    tables: "Mapping[str, pd.DataFrame]",
    draw: Callable[[], tuple[Any, str]],
    estimator: "Forecaster | AnomalyDetector | Classifier | None",
    data: Any,
    *,
    source: Any = None,
    **page: Any,
) -> None:
    """Write the tables, the picture and the page of a command, and print their paths and that of the model.

    Args:
        options: Options of the command, with the files of all results.
        tables: Tables by option.
        draw: Returns the figure, and what it leaves out.
        estimator: What writes the page; None for results without one.
        source: The table before columns were removed from `data`.
        page: Further arguments of the estimator's `page`.
    """
    from toa.data.formats import write_frame
    from toa.report.figures import save_figure

    console = make_console()
    for option, table in tables.items():
        label = "table:" if option == "out" else f"{option}:"
        path = write_frame(table, options[option], keep_formulas=options["keep_formulas"])
        console.print(f"{label:<8} {path}", soft_wrap=True)
    figure, more = draw()
    console.print(f"picture: {save_figure(figure, options['picture'])}{more}", soft_wrap=True)
    if estimator is not None and options["page"] is not None:
        left_out = [] if source is None else [str(name) for name in source if name not in data]
        command = shlex.join(["toa", *sys.argv[1:]])
        estimator.page(options["page"], data, command=command, left_out=left_out, **page)
        console.print(f"page:    {options['page']}", soft_wrap=True)
    raise_save_error(options)
    if options["save"] is not None:
        console.print(f"model:   {options['save']}", soft_wrap=True)
