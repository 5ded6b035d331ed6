import pytest

from tests.support import message
from toa._registry import Registry


def make() -> Registry[int]:
    registry: Registry[int] = Registry("model")
    registry.register("one")(1)
    registry.register("two")(2)
    return registry


def test_entries_are_looked_up_by_name_in_the_order_of_registration() -> None:
    registry = make()
    assert registry["two"] == 2
    assert list(registry) == ["one", "two"]
    assert len(registry) == 2
    assert "one" in registry
    assert "three" not in registry


def test_register_is_a_decorator_that_returns_its_argument() -> None:
    registry: Registry[type] = Registry("class")

    @registry.register("thing")
    class Thing:
        pass

    assert registry["thing"] is Thing


def test_a_duplicate_raises_and_keeps_the_first() -> None:
    registry = make()
    with pytest.raises(ValueError, match=message("model 'one' is already registered; choose another name.")):
        registry.register("one")(3)
    assert registry["one"] == 1


def test_an_unknown_name_raises_and_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=message("unknown model 'tow'; known: one, two.")):
        make()["tow"]
