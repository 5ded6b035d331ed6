import os
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _language_is_patched_once_per_launch() -> None:
    """Triton's interpreter patches its language at every call of a device function: a fifth of the time of a launch."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):
        return  # an older Triton
    launch = interpreter.GridExecutor.__call__
    patch_lang = interpreter._patch_lang
    scope = interpreter._LangPatchScope
    patched: set[int] = set()

    def launch_unpatched(*given: Any, **named: Any) -> None:
        patched.clear()
        launch(*given, **named)

    def patch_new(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return scope()
        patched.add(module)
        return patch_lang(function)

    interpreter.GridExecutor.__call__ = launch_unpatched
    interpreter._patch_lang = patch_new
