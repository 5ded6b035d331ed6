"""Other packages add tasks, protocols and commands; a broken one is reported in one line and takes nothing with it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from toa._plugins import PluginError, PluginRegistry, plugin_entries
from toa.cli import app
from toa.cli.plugins import subcommands
from toa.experiments import load_protocol, protocol_names, protocols

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package of one module with entries of a group."""

    def put(package: str, source: str, group: str, *entries: str) -> None:
        folder = tmp_path / package
        information = folder / f"{package}-1.0.dist-info"
        information.mkdir(parents=True)
        (folder / f"{package}.py").write_text(source)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text("\n".join([f"[{group}]", *entries]) + "\n")
        monkeypatch.syspath_prepend(folder)
        plugin_entries.cache_clear()

    modules = set(sys.modules)
    yield put
    for name in sys.modules.keys() - modules:
        if name.startswith("another"):
            del sys.modules[name]
    plugin_entries.cache_clear()


def make_registry() -> PluginRegistry[int]:
    registry: PluginRegistry[int] = PluginRegistry("number", "toa.numbers", int)
    registry["one"] = 1
    return registry


def test_an_entry_is_loaded_when_it_is_looked_up_and_not_before(install):
    install("another", "TWO = 2", "toa.numbers", "two = another:TWO")
    registry = make_registry()
    assert registry["one"] == 1
    assert "another" not in sys.modules
    assert registry["two"] == 2


def test_entries_are_in_every_listing(install):
    install("another", "TWO = 2", "toa.numbers", "two = another:TWO")
    assert list(make_registry()) == ["one", "two"]
    assert list(make_registry().items()) == [("one", 1), ("two", 2)]
    assert list(make_registry().keys()) == ["one", "two"]
    assert list(make_registry().values()) == [1, 2]
    assert len(make_registry()) == 2
    assert "two" in make_registry()
    with pytest.raises(ValueError, match="unknown number 'three'; known: one, two"):
        make_registry()["three"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "raise RuntimeError('it is\\nbroken')",
            "must be importable from another:TWO, got RuntimeError: it is broken",
        ),
        (
            "import no_such_module",
            "got ModuleNotFoundError: No module named 'no_such_module'; install its package again",
        ),
        ("TWO = 'two'", "must have the type int, got str"),
    ],
)
def test_a_broken_entry_is_left_out_with_one_warning_and_states_the_reason_when_asked_for(install, source, reason):
    install("another", source, "toa.numbers", "two = another:TWO")
    registry = make_registry()
    with pytest.warns(UserWarning, match="the number 'two' of toa.numbers must") as warned:
        names = list(registry)
    assert names == ["one"]
    assert "two" not in registry
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    with pytest.raises(PluginError) as error:
        registry["two"]
    assert reason in str(error.value)
    assert registry["one"] == 1


def test_a_name_of_two_packages_is_refused(install):
    install("another", "TWO = 2", "toa.numbers", "two = another:TWO")
    install("another_one", "TWO = 3", "toa.numbers", "two = another_one:TWO")
    with (
        pytest.warns(UserWarning, match="the number 'two'"),
        pytest.raises(PluginError, match=r"registered by one package, got another.*:TWO and another.*:TWO"),
    ):
        make_registry()["two"]


COMMAND = """
import typer
from toa.cli.terminal import Command

app = typer.Typer()


@app.command(cls=Command)
def juggle() -> None:
    "Throw balls."
    raise ValueError("balls must be at least 1, got 0.")
"""


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "300", "TERM": "dumb"})
    return result.exit_code, " ".join(result.output.split())


def test_a_command_of_another_package_is_listed_and_runs(install):
    install("another", COMMAND, "toa.commands", "juggle = another:app")
    code, text = call("--help")
    assert code == 0
    assert "juggle Throw balls." in text
    assert call("juggle") == (2, "error: balls must be at least 1, got 0.")
    assert "Did you mean 'juggle'" in call("jugle")[1]


def test_a_command_is_imported_only_when_it_or_the_help_needs_it(install):
    install("another", COMMAND, "toa.commands", "juggle = another:app")
    assert call("doctor", "--help")[0] == 0
    assert "another" not in sys.modules


def test_a_command_of_the_library_is_not_replaced(install):
    install("another", COMMAND.replace("juggle", "doctor"), "toa.commands", "doctor = another:app")
    assert "Throw balls" not in call("doctor", "--help")[1]
    assert "another" not in sys.modules


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "got ModuleNotFoundError: No module named 'no_such_module'"),
        ("app = 3", "must be a typer app, got int"),
        (COMMAND.replace("juggle", "dance"), "must be a command of its app, got dance"),
    ],
)
def test_a_broken_command_prints_one_line_and_the_others_work(install, source, reason):
    install("another", source, "toa.commands", "juggle = another:app")
    code, text = call("juggle", "--balls", "3", "high")
    assert code == 2
    assert text.startswith("error: 'juggle' of toa.commands must be")
    assert reason in text
    assert "Traceback" not in text
    code, text = call("--help")
    assert code == 0
    assert "Cannot be used: 'juggle' of toa.commands" in text
    assert "forecast" in text
    assert call("data", "--help")[0] == 0


def test_the_root_lists_the_commands_of_all_packages(install):
    install("another", COMMAND, "toa.commands", "juggle = another:app")
    names = [*subcommands(typer.main.get_command(app))]
    assert names[:2] == ["run", "compare"]
    assert "juggle" in names


@pytest.fixture
def _forgotten_protocols(monkeypatch) -> Iterator[None]:
    """Protocols are read again, before and after."""

    def forget() -> None:
        protocols._protocol_files.cache_clear()
        load_protocol.cache_clear()

    packages: PluginRegistry[object] = PluginRegistry("package of protocols", "toa.protocols", type(sys))
    packages["toa"] = protocols
    monkeypatch.setattr(protocols, "PROTOCOL_PACKAGES", packages)
    forget()
    yield
    forget()


@pytest.mark.usefixtures("_forgotten_protocols")
def test_protocols_of_another_package_stand_beside_those_of_the_library(install, tmp_path):
    install("another", "", "toa.protocols", "another = another")
    package = tmp_path / "another" / "another"
    (package / "forecast").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "forecast" / "mine.toml").write_text('about = "mine"\n[patchtst]\nlike = "toa-paper"\n')
    assert {"mine", "toa-paper"} <= {*protocol_names("forecast")}
    assert "mine" not in protocol_names("anomaly")
    mine, base = (load_protocol("forecast", name).tables["patchtst"] for name in ("mine", "toa-paper"))
    assert mine == base


@pytest.mark.usefixtures("_forgotten_protocols")
def test_a_protocol_of_two_packages_is_refused(install, tmp_path):
    install("another", "", "toa.protocols", "another = another")
    package = tmp_path / "another" / "another"
    (package / "forecast").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "forecast" / "toa-paper.toml").touch()
    with pytest.raises(ValueError, match="protocol 'toa-paper' of task 'forecast' must have one file"):
        protocol_names("forecast")
