"""From config to data, head, task and predictions, on tiny models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from frostline.config.models.config import Config
from frostline.config.origin import Origins
from frostline.data import LabelMap, Rows
from frostline.errors import CheckpointError, ConfigError, DataError
from frostline.recipes import Assembly, assemble
from frostline.recipes.assembly import read_labels

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_rows(rows: list[dict[str, Any]], name: str = "train") -> str:
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(file)

    return write_rows


def classification(model: Path, train: str, data: dict[str, Any] | None = None, **sections: Any) -> Config:
    values = {"recipe": "sequence_classification", "model": {"name_or_path": str(model)}, **sections}
    values["data"] = {"train": train, "validation": 2, **(data or {})}
    if "labels" in values:
        values["model"] |= values.pop("labels")
    return Config.model_validate(values)


def causal(model: Path, train: str, **data: Any) -> Config:
    values = {"recipe": "causal_lm", "model": str(model), "data": {"train": train, "validation": None, **data}}
    return Config.model_validate(values)


def texts(num: int) -> list[dict[str, Any]]:
    words = ["good", "great", "ok", "bad", "awful"]
    return [{"text": f"{words[i % 5]} film {'a ' * i}", "label": ["pos", "neg"][i % 2]} for i in range(num)]


def run(config: Config, **options: Any) -> Assembly:
    return assemble(config, Origins(), **options)


def test_counts_and_summary(bert_folder: Path, write: Write) -> None:
    rows = [*texts(10), *texts(3)]
    assembly = run(classification(bert_folder, write(rows), {"max_length": 8, "max_examples": 6}))
    data = assembly.data
    assert data is not None
    assert (data.num_read, data.num_duplicates, len(data.train)) == (13, 3, 6)
    cut = sum(part.stats.num_truncated for part in data.parts.values())
    assert data.summary == f"13 read, 3 duplicates out, 6 + 2 used, 2 labels, {cut} cut at 8 tokens"
    assert assembly.labels == LabelMap(("neg", "pos"), "single_label")
    assert sum(data.label_counts.values()) == 6
    assert data.preview(assembly.tokenizer, 1).plain.startswith("example 1")


def test_validation_does_not_depend_on_the_number_of_training_examples(bert_folder: Path, write: Write) -> None:
    file = write(texts(12))
    few, many = (run(classification(bert_folder, file, {"max_examples": num})).data for num in (3, 9))
    assert few is not None
    assert many is not None
    assert few.validation is not None
    assert many.validation is not None
    assert few.validation.examples == many.validation.examples


def test_labels_come_from_all_training_rows_not_from_the_sample(bert_folder: Path, write: Write) -> None:
    rows = [*texts(10), {"text": "thanks", "label": "rare"}, {"text": "bye", "label": "rare"}]
    assembly = run(classification(bert_folder, write(rows), {"max_examples": 1, "validation": None}))
    assert assembly.labels is not None
    assert assembly.labels.names == ("neg", "pos", "rare")


def test_training_rows_that_are_in_the_test_source_go_out(bert_folder: Path, write: Write) -> None:
    config = classification(bert_folder, write(texts(10)), {"test": write(texts(3), "test"), "validation": None})
    data = run(config).data
    assert data is not None
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (7, 3)
    assert "3 training examples are also in the test data: out of training" in data.notes


def test_texts_with_two_labels_are_told(bert_folder: Path, write: Write) -> None:
    rows = [*texts(8), {"text": texts(1)[0]["text"], "label": "neg"}]
    data = run(classification(bert_folder, write(rows))).data
    assert data is not None
    assert "1 text occurs with more than one label; the first one counts" in data.notes


def test_label_in_validation_that_training_never_saw(bert_folder: Path, write: Write) -> None:
    other = write([{"text": "hello", "label": "new"}], "validation")
    with pytest.raises(DataError, match=r"labels that the training data never had: 'new'"):
        run(classification(bert_folder, write(texts(8)), {"validation": other}))


def test_text_pairs_have_token_types(bert_folder: Path, write: Write) -> None:
    rows = [{"text": "good film", "text_pair": f"great {'a ' * i}", "label": str(i % 2)} for i in range(6)]
    assembly = run(classification(bert_folder, write(rows)))
    assert assembly.data is not None
    assert set(assembly.data.train.examples[0]["token_type_ids"]) == {0, 1}
    batch = assembly.build_task().collate(assembly.data.train.examples)
    assert set(batch) == {"input_ids", "attention_mask", "token_type_ids", "labels"}


def test_max_length_above_the_window(bert_folder: Path, write: Write) -> None:
    with pytest.raises(ConfigError, match=r"max_length is 33, and the model takes 32 tokens"):
        run(classification(bert_folder, write(texts(8)), {"max_length": 33}))


def test_default_length_is_the_window(bert_folder: Path, write: Write) -> None:
    rows = [*texts(8), {"text": "a " * 100, "label": "pos"}]
    data = run(classification(bert_folder, write(rows), {"validation": None})).data
    assert data is not None
    assert data.max_length == 32
    assert data.train.stats.num_truncated == 1


def test_class_weights(bert_folder: Path, write: Write) -> None:
    rows = [*texts(4), {"text": "bye", "label": "pos"}, {"text": "hi", "label": "pos"}]
    sections = {"training": {"class_weights": "balanced"}}
    data = run(classification(bert_folder, write(rows), {"validation": None}, **sections)).data
    assert data is not None
    assert data.label_weights == pytest.approx((6 / (2 * 2), 6 / (2 * 4)))
    sections = {"training": {"class_weights": {"pos": 2.0, "neg": 1.0}}}
    data = run(classification(bert_folder, write(rows), **sections)).data
    assert data is not None
    assert data.label_weights == (1.0, 2.0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [({"pos": 1.0}, "no weight for: neg"), ({"pos": 1.0, "neg": 1.0, "x": 1.0}, "unknown labels: x")],
)
def test_class_weights_that_do_not_fit(
    bert_folder: Path, write: Write, weights: dict[str, float], message: str
) -> None:
    config = classification(bert_folder, write(texts(8)), training={"class_weights": weights})
    with pytest.raises(ConfigError, match=message):
        run(config)


@pytest.mark.parametrize("training", [{"label_smoothing": 0.1}, {"class_weights": {"value": 1.0}}])
def test_weights_and_smoothing_need_one_label_each(bert_folder: Path, write: Write, training: dict[str, Any]) -> None:
    rows = [{"text": f"a {'b ' * i}", "label": i / 2} for i in range(8)]
    with pytest.raises(ConfigError, match="has no meaning for a regression problem"):
        run(classification(bert_folder, write(rows), training=training))


def test_labels_keep_the_order_of_the_head_that_the_base_has(bert_folder: Path, tmp_path: Path, write: Write) -> None:
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification.from_pretrained(bert_folder, id2label={0: "pos", 1: "neg"})
    model.save_pretrained(tmp_path / "tuned")
    run(classification(bert_folder, write(texts(8)))).tokenizer.save_pretrained(tmp_path / "tuned")
    assembly = run(classification(tmp_path / "tuned", write(texts(8))))
    assert assembly.labels is not None
    assert assembly.labels.names == ("pos", "neg")
    assert assembly.build_meta_model().new == frozenset()


def test_predict_single_label_without_label_column(bert_folder: Path, write: Write) -> None:
    assembly = run(classification(bert_folder, write(texts(8))))
    meta = assembly.build_meta_model()
    model = assembly.load_model(meta).model
    answers = assembly.predict(model, Rows.from_dicts([{"text": "good film", "id": 7}, {"text": "a " * 99, "id": 8}]))
    assert [row["id"] for row in answers] == [7, 8]
    for row in answers:
        assert row["predicted_label"] in ("neg", "pos")
        assert 0.5 <= row["probability"] <= 1.0


def test_predict_several_labels_and_numbers(bert_folder: Path, write: Write) -> None:
    several = [{"text": f"a {'b ' * i}", "label": [["x"], ["x", "y"], []][i % 3]} for i in range(8)]
    assembly = run(classification(bert_folder, write(several)))
    (row,) = assembly.predict(assembly.load_model().model, Rows.from_dicts([{"text": "a"}]))
    assert row["predicted_labels"] == [name for name, chance in row["probabilities"].items() if chance >= 0.5]
    numbers = [{"text": f"a {'b ' * i}", "label": i / 2} for i in range(8)]
    assembly = run(classification(bert_folder, write(numbers)))
    (row,) = assembly.predict(assembly.load_model().model, Rows.from_dicts([{"text": "a"}]))
    assert isinstance(row["predicted_value"], float)


def test_extras_come_back(bert_folder: Path, write: Write, tmp_path: Path) -> None:
    config = classification(bert_folder, write(texts(8)))
    first = run(config)
    first.write_extras(tmp_path / "adapter")
    again = run(config, checkpoint_part=tmp_path / "adapter", with_data=False)
    assert again.data is None
    assert again.labels == first.labels
    assert again.head == first.head
    assert (tmp_path / "adapter" / "tokenizer.json").is_file()
    (tmp_path / "adapter" / "labels.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"labels\.json is damaged"):
        read_labels(tmp_path / "adapter")


CHATS = [
    {"messages": [{"role": "user", "content": f"hi {'a ' * i}"}, {"role": "assistant", "content": "fine thanks"}]}
    for i in range(6)
]


def test_causal_lm_trains_the_assistant_and_counts_what_is_dropped(llama_folder: Path, write: Write) -> None:
    long = {"messages": [{"role": "user", "content": "a " * 80}, {"role": "assistant", "content": "ok"}]}
    assembly = run(causal(llama_folder, write([*CHATS, long])))
    data = assembly.data
    assert data is not None
    assert data.labels is None
    assert (len(data.train), data.train.stats.num_dropped, data.max_length) == (6, 1, 64)
    assert data.summary == "7 read, 6 used, 1 dropped (no label left)"
    example = data.train.examples[0]
    trained = [label for label in example["labels"] if label != -100]
    assert assembly.tokenizer.decode(trained) == "fine thanks </s>"
    assert assembly.task_type == "CAUSAL_LM"


def test_causal_lm_with_nothing_left(llama_folder: Path, write: Write) -> None:
    with pytest.raises(DataError, match=r"none of the 6 training examples keeps a token to train"):
        run(causal(llama_folder, write(CHATS), max_length=3))


def test_tiny_lm_learns_an_answer_and_writes_it(llama_folder: Path, write: Write) -> None:
    """End of turn included: the text stops by itself, batched with left padding and alone."""
    assembly = run(causal(llama_folder, write(CHATS)))
    assert assembly.data is not None
    model, task = assembly.load_model().model, assembly.build_task()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    batch = task.collate(assembly.data.train.examples)
    for _ in range(40):
        optimizer.zero_grad()
        (task.loss_sum(model, batch) / task.num_targets(batch)).backward()
        optimizer.step()
    rows = Rows.from_dicts([{"prompt": "hi"}, {"prompt": "hi a a a a"}, {"prompt": "hi a"}])
    answers = assembly.predict(model, rows, max_new_tokens=8)
    assert [row["generated"] for row in answers] == ["fine thanks"] * 3
    from_chats = assembly.predict(model, Rows.from_dicts(CHATS[:2]), max_new_tokens=8, batch_size=1)
    assert [row["generated"] for row in from_chats] == ["fine thanks"] * 2


def test_predict_names_the_columns_that_would_do(llama_folder: Path, write: Write) -> None:
    assembly = run(causal(llama_folder, write(CHATS)))
    with pytest.raises(DataError, match=r"no column 'messages'"):
        assembly.predict(assembly.load_model().model, Rows.from_dicts([{"question": "hi"}]))
    with pytest.raises(DataError, match=r"row 0: messages is str, not a conversation"):
        assembly.predict(assembly.load_model().model, Rows.from_dicts([{"messages": "hi"}]))


def test_labels_that_look_like_one_are_noted_and_left(bert_folder: Path, write: Write) -> None:
    rows = [{"text": f"good {'a ' * i}", "label": ["Praise", "praise", " praise"][i % 3]} for i in range(9)]
    rows += [
        {"text": "bad film", "label": "odd"},
        {"text": "awful", "label": "neg"},
        {"text": "awful a", "label": "neg"},
    ]
    data = run(classification(bert_folder, write(rows), {"validation": None})).data
    assert data is not None
    assert data.labels is not None
    assert data.labels.num_labels == 5
    assert data.notes == (
        "labels that differ only in white space or case are different labels: ' praise' (3 x), 'Praise' (3 x), "
        "'praise' (3 x)",
        "a label with one example: 'odd'",
    )
    assert data.label_summary == "' praise' 3, Praise 3, neg 2, odd 1, praise 3"


def test_blank_texts_are_noted(bert_folder: Path, write: Write) -> None:
    rows = [*texts(8), {"text": " \n", "label": "pos"}, {"text": "", "label": "neg"}]
    data = run(classification(bert_folder, write(rows), {"validation": None})).data
    assert data is not None
    assert len(data.notes) == 1
    assert data.notes[0].startswith("2 training texts are empty or blank (first: ")
    assert data.notes[0].endswith("train.jsonl, line 9)")


@pytest.mark.parametrize(("pair", "least"), [(False, 3), (True, 5)])
def test_a_length_without_room_for_text(bert_folder: Path, write: Write, pair: bool, least: int) -> None:
    rows = [{**row, **({"text_pair": "ok"} if pair else {})} for row in texts(8)]
    for length in range(1, least):
        with pytest.raises(
            ConfigError, match=rf"leaves no room(.|\n)*{least} at least: the tokenizer adds {2 + pair} sp"
        ):
            run(classification(bert_folder, write(rows), {"max_length": length}))
    data = run(classification(bert_folder, write(rows), {"max_length": least})).data
    assert data is not None
    assert {len(example["input_ids"]) for example in data.train.examples} == {least}


def test_a_length_that_keeps_no_token_names_one_that_does(llama_folder: Path, write: Write) -> None:
    file = write(CHATS)
    longest = max(run(causal(llama_folder, file)).data.train.stats.lengths)  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"keeps a token to train within data\.max_length: 3") as error:
        run(causal(llama_folder, file, max_length=3))
    found = re.search(rf"(\d+) at least.*the longest example has {longest} tokens", str(error.value))
    assert found
    assert run(causal(llama_folder, file, max_length=int(found[1]))).data is not None
    with pytest.raises(DataError, match=r"keeps a token to train"):
        run(causal(llama_folder, file, max_length=int(found[1]) - 1))


def test_a_prompt_that_the_template_refuses_names_its_place(llama_folder: Path, write: Write) -> None:
    assembly = run(causal(llama_folder, write(CHATS)))
    assembly.tokenizer.chat_template = "{{ raise_exception('no') if messages[0]['content'] == 'bad' else 'hi' }}"
    with pytest.raises(DataError, match="cannot render asked, row 1: no"):
        assembly.predict(assembly.load_model().model, Rows.from_dicts([{"prompt": "hi"}, {"prompt": "bad"}], "asked"))
