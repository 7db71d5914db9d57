"""The JSON schema: every key with its description, aliases and shorthands; nothing that a config cannot be."""

from __future__ import annotations

import json
from typing import Any

from frostline.config import Config, json_schema


def objects(node: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [node] if isinstance(node, dict) else []
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        found += objects(child)
    return found


def test_it_is_json_of_the_current_draft() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "Frostline config"
    assert schema["required"] == ["recipe", "model", "data"]
    assert list(schema["properties"]) == list(Config.model_fields)


def test_every_reference_leads_somewhere() -> None:
    schema = json_schema()
    references = [node["$ref"] for node in objects(schema) if "$ref" in node]
    assert references
    assert {reference.removeprefix("#/$defs/") for reference in references} == set(schema["$defs"])


def test_mappings_allow_no_other_keys_and_describe_theirs() -> None:
    schema = json_schema()
    with_keys = [node for node in objects(schema) if node.get("type") == "object" and "properties" in node]
    assert len(with_keys) == 20
    for node in with_keys:
        # A method of another package checks its own keys.
        assert node["additionalProperties"] is (node is schema["$defs"]["MethodConfig"])
        for child in node["properties"].values():
            described = child if "$ref" not in child else schema["$defs"][child["$ref"].removeprefix("#/$defs/")]
            assert child.get("description") or described["description"]


def test_aliases_and_shorthands() -> None:
    schema = json_schema()
    peft = schema["$defs"]["PeftConfig"]["properties"]
    assert peft["r"] == {"type": "integer", "minimum": 1, "description": "Another name of `rank`."}
    assert {"dim", "lora_rank", "lora_alpha", "lora_dropout"} <= set(peft)
    assert schema["properties"]["recipe"]["enum"] == ["sequence_classification", "causal_lm", "sft"]
    for name in ("ModelConfig", "TokenizerConfig", "SourceConfig"):
        assert [choice["type"] for choice in schema["$defs"][name]["anyOf"]] == ["string", "object"]


def test_only_a_method_of_another_package_has_keys_of_its_own() -> None:
    schema = json_schema()["$defs"]
    assert schema["PeftConfig"]["properties"]["method"]["const"] == "lora"
    assert schema["MethodConfig"]["properties"]["method"]["not"] == {"const": "lora"}
    assert schema["MethodConfig"]["required"] == ["method"], "without it the block is lora's"


def test_selectors_are_text_mappings_or_lists() -> None:
    freeze = json_schema()["$defs"]["FreezeConfig"]["properties"]["freeze_modules"]
    assert [choice["type"] for choice in freeze["anyOf"]] == ["string", "object", "array"]
