"""Keywords of the public functions: an editor knows them, and a wrong one is refused in the function's own name."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

import ropescale
from ropescale.request import Request, RequestOptions


def test_the_typed_keywords_of_a_request_are_its_fields():
    assert ["spec", *RequestOptions.__annotations__] == [field.name for field in dataclasses.fields(Request)]


FUNCTIONS = ["patch", "patch_checkpoint", "patch_gguf", "frequencies", "verify", "plot"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_misspelt_keyword_names_the_function_that_was_called(name):
    function: Any = getattr(ropescale, name)
    required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind in (0, 1)]
    with pytest.raises(TypeError) as caught:
        function(*["MODEL" for _ in required], tokeniser=None)
    said = str(caught.value)
    assert said.startswith(f"ropescale.{name}() got an unexpected keyword argument 'tokeniser'; ")
