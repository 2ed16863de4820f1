"""Templates come from strangers."""

import time

import pytest

from slm_runtime import chat_template
from slm_runtime.chat_template import ChatTemplate
from slm_runtime.errors import FormatError

HELLO = [{"role": "user", "content": "hello"}]


def render(source: str) -> str:
    return ChatTemplate(source, {"eos_token": "</s>"}).render(HELLO, add_generation_prompt=True)


def test_special_tokens_and_messages_reach_the_template() -> None:
    assert render("{{ messages[0].content }}{{ eos_token }}{{ add_generation_prompt }}") == "hello</s>True"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ 'a' * 10000000000 }}",
        "{{ 10 ** 10000000000 }}",
        "{{ raise_exception('no system role') }}",
        "{{ 1 / 0 }}",
        "{{ messages[7].content.x }}",
    ],
)
def test_c34_a_template_that_leaves_the_sandbox_is_an_error(source: str) -> None:
    with pytest.raises(FormatError, match="chat template"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(99999)|list %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    ],
)
def test_c34_an_endless_template_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "TIME_LIMIT_S", 0.2)
    started = time.perf_counter()
    with pytest.raises(FormatError, match="longer than"):
        render(source)
    assert time.perf_counter() - started < 10


def test_invalid_jinja_is_reported() -> None:
    with pytest.raises(FormatError, match="not valid jinja"):
        ChatTemplate("{% if %}", {})
