import re

from tests.support import ROOT
from toa.experiments import protocol_names
from toa.models import backbone_names
from toa.nn import ATTENTIONS
from toa.ops.attention.api import BACKENDS

README = (ROOT / "README.md").read_text()


def test_the_readme_begins_with_the_two_commands():
    commands = re.findall(r"^make (\w+)", README, flags=re.MULTILINE)
    assert commands[:2] == ["demo", "test"]


def test_the_python_example_runs_and_gives_what_it_says():
    code = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(code.group(1), names)
    assert tuple(names["w_mix"].shape) == (8, 4, 96, 96)  # type: ignore[attr-defined]
    assert names["w_mix"].min() < 0  # type: ignore[attr-defined]


def test_every_local_link_leads_somewhere():
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", README)
    assert len(links) >= 4
    for link in links:
        assert (ROOT / link).exists(), link


def test_every_model_attention_protocol_and_backend_is_named():
    named = set(re.findall(r"`([a-z0-9-]+)`", README))
    assert {*backbone_names("forecast"), *ATTENTIONS, *protocol_names(), *BACKENDS} <= named
