"""Keys of other tools, and how Frostline says the same: one table, asked before any guess by spelling.

Knows Frostline's keys only as text; a test checks that each of them exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ForeignKey:
    """One key of another tool.

    Attributes:
        tools: who has it.
        ours: Frostline's key, dotted; None where nothing needs to be set.
        note: what differs, or what to do where `ours` is None.
        convert: their value to ours, where it can be carried over; None shows the key without a value.
    """

    tools: str
    ours: str | None
    note: str | None = None
    convert: Callable[[Any], Any] | None = None


def _same(value: Any) -> Any:
    return value


def _selector(selector: Any) -> Callable[[Any], Any]:
    return lambda value: None if value is False else [selector]


def _one_of(**words: str) -> Callable[[Any], Any]:
    return lambda value: words.get(str(value).lower())


_TRAINER = "the Hugging Face Trainer"
_AXOLOTL = "axolotl"
_LLAMA_FACTORY = "LLaMA-Factory"
_PEFT = "peft"
_NEMO = "nemo-automodel"
_ONE_PROCESS = "remove it: the main process prepares the data"
_FREEZE = "freeze_config.freeze_modules"
_GLOBAL_BATCH = "batch_size is the global batch of one optimizer step; accumulation is derived from micro_batch_size"

FOREIGN_KEYS: dict[str, ForeignKey] = {
    # how much trains
    "modules_to_save": ForeignKey(
        _PEFT, "freeze_config.unfreeze_modules", "a module trained in full is thawed; a new head trains anyway", _same
    ),
    "unfrozen_parameters": ForeignKey(
        _AXOLOTL,
        "freeze_config.unfreeze_modules",
        'freeze the rest with freeze_modules: ["*"]; selectors are no regular expressions unless written {regex: ...}',
    ),
    "layers_to_transform": ForeignKey(
        _PEFT, "peft.target_modules", "select within layers: {type: Linear, within: {layers: [0, 1]}}"
    ),
    "layers_pattern": ForeignKey(
        _PEFT, "peft.target_modules", 'name the block list with `of`: {layers: ":8", of: model.layers}'
    ),
    "match_all_linear": ForeignKey(_NEMO, "peft.target_modules", None, lambda value: "all-linear" if value else None),
    "freeze_embeddings": ForeignKey(_NEMO, _FREEZE, None, _selector({"type": "Embedding"})),
    "freeze_vision_model": ForeignKey(_NEMO, _FREEZE, None, _selector("vision*")),
    "freeze_vision_encoder": ForeignKey("other tools", _FREEZE, None, _selector("vision*")),
    "freeze_audio_model": ForeignKey(_NEMO, _FREEZE, None, _selector("audio*")),
    "freeze_llm": ForeignKey("other tools", _FREEZE, None, _selector("language_model")),
    "freeze_multi_modal_projector": ForeignKey(_LLAMA_FACTORY, _FREEZE, None, _selector("multi_modal_projector")),
    "freeze_lm_head": ForeignKey("other tools", _FREEZE, None, _selector("lm_head")),
    "freeze_head": ForeignKey("other tools", _FREEZE, "name your model's head", _selector("classifier")),
    "freeze_backbone": ForeignKey(
        "other tools", _FREEZE, "name your model's backbone, such as bert or model", _selector("bert")
    ),
    "freeze_base_model": ForeignKey(
        "other tools", _FREEZE, "name your model's backbone, such as bert or model", _selector("bert")
    ),
    "freeze_encoder": ForeignKey("other tools", _FREEZE, None, _selector("encoder")),
    "freeze_layernorm": ForeignKey("other tools", _FREEZE, None, _selector({"type": "LayerNorm"})),
    "freeze_bias": ForeignKey("other tools", _FREEZE, None, _selector({"param": "*.bias"})),
    "freeze_layers": ForeignKey(
        "other tools",
        _FREEZE,
        'the first N layers are {layers: ":N"}',
        lambda value: [{"layers": f":{value}"}] if type(value) is int else None,
    ),
    "num_frozen_layers": ForeignKey(
        "other tools", _FREEZE, None, lambda value: [{"layers": f":{value}"}] if type(value) is int else None
    ),
    "freeze_trainable_layers": ForeignKey(
        _LLAMA_FACTORY,
        "freeze_config.unfreeze_modules",
        'freeze the rest with freeze_modules: ["*"]',
        lambda value: [{"layers": f"-{value}:"}] if type(value) is int and value > 0 else None,
    ),
    "freeze_trainable_modules": ForeignKey(_LLAMA_FACTORY, "freeze_config.unfreeze_modules"),
    "trainable_modules": ForeignKey(
        "other tools", "freeze_config.unfreeze_modules", 'freeze the rest with freeze_modules: ["*"]', _same
    ),
    "finetuning_type": ForeignKey(
        _LLAMA_FACTORY, "peft.method", "full or freeze: leave `peft` out", _one_of(lora="lora")
    ),
    "bias": ForeignKey(
        _PEFT,
        "freeze_config.unfreeze_modules",
        'bias: all thaws every bias: [{param: "*.bias"}]; bias: none needs no key',
        lambda value: [{"param": "*.bias"}] if value == "all" else None,
    ),
    # adapters
    "adapter": ForeignKey(
        _AXOLOTL, "peft.method", "qlora needs quantization, which is not supported", _one_of(lora="lora")
    ),
    "peft_type": ForeignKey(_PEFT, "peft.method", None, _one_of(lora="lora")),
    "lora_r": ForeignKey(_AXOLOTL, "peft.rank", None, _same),
    "lora_alpha": ForeignKey(f"{_PEFT}, {_AXOLOTL}", "peft.alpha", "lora_alpha is read inside `peft` too", _same),
    "lora_rank": ForeignKey(_LLAMA_FACTORY, "peft.rank", "lora_rank is read inside `peft` too", _same),
    "lora_dropout": ForeignKey(f"{_PEFT}, {_AXOLOTL}", "peft.dropout", "lora_dropout is read inside `peft` too", _same),
    "lora_target": ForeignKey(
        _LLAMA_FACTORY, "peft.target_modules", None, lambda value: "all-linear" if value == "all" else value
    ),
    "lora_target_modules": ForeignKey(_AXOLOTL, "peft.target_modules", None, _same),
    "lora_target_linear": ForeignKey(
        _AXOLOTL, "peft.target_modules", None, lambda value: "all-linear" if value else None
    ),
    "lora_modules_to_save": ForeignKey(
        _AXOLOTL,
        "freeze_config.unfreeze_modules",
        "a module trained in full is thawed; a new head trains anyway",
        _same,
    ),
    "peft_use_rslora": ForeignKey(_AXOLOTL, "peft.use_rslora", None, _same),
    "lora_use_rslora": ForeignKey(_AXOLOTL, "peft.use_rslora", None, _same),
    "task_type": ForeignKey(_PEFT, "recipe", None, _one_of(seq_cls="sequence_classification", causal_lm="causal_lm")),
    # model
    "base_model": ForeignKey(_AXOLOTL, "model.name_or_path", None, _same),
    "base_model_name_or_path": ForeignKey(_PEFT, "model.name_or_path", None, _same),
    "model_name_or_path": ForeignKey(f"{_LLAMA_FACTORY}, {_TRAINER}", "model.name_or_path", None, _same),
    "pretrained_model_name_or_path": ForeignKey(f"transformers, {_NEMO}", "model.name_or_path", None, _same),
    "tokenizer_name": ForeignKey(_TRAINER, "tokenizer.name_or_path", None, _same),
    "tokenizer_config": ForeignKey(_AXOLOTL, "tokenizer.name_or_path", None, _same),
    "torch_dtype": ForeignKey(f"transformers, {_NEMO}", "model.dtype", None, _same),
    "flash_attention": ForeignKey(_AXOLOTL, "model.attn_implementation", None, _one_of(true="flash_attention_2")),
    "flash_attn": ForeignKey(
        _LLAMA_FACTORY,
        "model.attn_implementation",
        None,
        _one_of(fa2="flash_attention_2", sdpa="sdpa", disabled="eager"),
    ),
    "sdp_attention": ForeignKey(_AXOLOTL, "model.attn_implementation", None, _one_of(true="sdpa")),
    "template": ForeignKey(_LLAMA_FACTORY, "tokenizer.chat_template", "a file; the tokenizer's own needs no key"),
    # data
    "dataset": ForeignKey(f"{_LLAMA_FACTORY}, {_NEMO}", "data.train"),
    "datasets": ForeignKey(_AXOLOTL, "data.train"),
    "dataset_name": ForeignKey(f"{_TRAINER}, TRL", "data.train", None, _same),
    "dataset_path": ForeignKey("other tools", "data.train", None, _same),
    "train_file": ForeignKey(_TRAINER, "data.train", None, _same),
    "train_dataset": ForeignKey(_TRAINER, "data.train"),
    "validation_file": ForeignKey(_TRAINER, "data.validation", None, _same),
    "eval_dataset": ForeignKey(f"{_TRAINER}, {_LLAMA_FACTORY}", "data.validation"),
    "validation_dataset": ForeignKey(_NEMO, "data.validation"),
    "test_datasets": ForeignKey(_AXOLOTL, "data.test"),
    "val_set_size": ForeignKey(_AXOLOTL, "data.validation", None, lambda value: value or None),
    "val_size": ForeignKey(_LLAMA_FACTORY, "data.validation", None, lambda value: value or None),
    "validation_split": ForeignKey("other tools", "data.validation", None, _same),
    "sequence_len": ForeignKey(_AXOLOTL, "data.max_length", None, _same),
    "seq_length": ForeignKey(_NEMO, "data.max_length", None, _same),
    "cutoff_len": ForeignKey(_LLAMA_FACTORY, "data.max_length", None, _same),
    "max_seq_length": ForeignKey("TRL", "data.max_length", None, _same),
    "max_seq_len": ForeignKey("other tools", "data.max_length", None, _same),
    "model_max_length": ForeignKey("transformers", "data.max_length", None, _same),
    "max_samples": ForeignKey(_LLAMA_FACTORY, "data.max_examples", None, _same),
    "max_train_samples": ForeignKey(_TRAINER, "data.max_examples", None, _same),
    "max_eval_samples": ForeignKey(_TRAINER, "evaluation.max_examples", None, _same),
    "train_on_inputs": ForeignKey(_AXOLOTL, "data.train_on", None, _one_of(true="all", false="assistant")),
    "train_on_prompt": ForeignKey(_LLAMA_FACTORY, "data.train_on", None, _one_of(true="all", false="assistant")),
    "mask_history": ForeignKey(_LLAMA_FACTORY, "data.train_on", None, _one_of(true="last", false="assistant")),
    "assistant_only_loss": ForeignKey("TRL", "data.train_on", None, _one_of(true="assistant", false="all")),
    "default_system": ForeignKey(_LLAMA_FACTORY, "data.system", None, _same),
    "dataset_text_field": ForeignKey("TRL", "data.columns.text", None, _same),
    "dataset_num_proc": ForeignKey("TRL", None, _ONE_PROCESS),
    "preprocessing_num_workers": ForeignKey(_LLAMA_FACTORY, None, _ONE_PROCESS),
    "dataloader_num_workers": ForeignKey(_TRAINER, None, _ONE_PROCESS),
    # training
    "per_device_train_batch_size": ForeignKey(
        f"{_TRAINER}, {_LLAMA_FACTORY}", "training.micro_batch_size", _GLOBAL_BATCH, _same
    ),
    "local_batch_size": ForeignKey(_NEMO, "training.micro_batch_size", _GLOBAL_BATCH, _same),
    "global_batch_size": ForeignKey(_NEMO, "training.batch_size", None, _same),
    "train_batch_size": ForeignKey("other tools", "training.batch_size", _GLOBAL_BATCH, _same),
    "gradient_accumulation_steps": ForeignKey(
        f"{_TRAINER}, {_AXOLOTL}, {_LLAMA_FACTORY}",
        "training.batch_size",
        "set batch_size to micro-batch x accumulation steps x devices; accumulation is then derived",
    ),
    "per_device_eval_batch_size": ForeignKey(_TRAINER, "evaluation.batch_size", None, _same),
    "eval_batch_size": ForeignKey(_AXOLOTL, "evaluation.batch_size", None, _same),
    "num_train_epochs": ForeignKey(f"{_TRAINER}, {_LLAMA_FACTORY}", "training.epochs", None, _same),
    "num_epochs": ForeignKey(f"{_AXOLOTL}, {_NEMO}", "training.epochs", None, _same),
    "max_epochs": ForeignKey("Lightning", "training.epochs", None, _same),
    "gradient_clipping": ForeignKey("DeepSpeed", "training.max_grad_norm", None, _same),
    "gradient_clip_val": ForeignKey("Lightning", "training.max_grad_norm", None, _same),
    "bf16": ForeignKey(
        f"{_TRAINER}, {_AXOLOTL}", "training.precision", None, _one_of(true="bf16", false="fp32", auto="bf16")
    ),
    "fp16": ForeignKey(
        f"{_TRAINER}, {_AXOLOTL}",
        "training.precision",
        "fp16 is not supported: bf16 or fp32",
        _one_of(true="bf16", false="fp32"),
    ),
    "label_smoothing_factor": ForeignKey(_TRAINER, "training.label_smoothing", None, _same),
    # optimizer and schedule
    "learning_rate": ForeignKey(f"{_TRAINER}, {_AXOLOTL}, {_LLAMA_FACTORY}", "optimizer.lr", None, _same),
    "optim": ForeignKey(
        _TRAINER,
        "optimizer.name",
        None,
        _one_of(adamw_torch="adamw", adamw_torch_fused="adamw", adamw_hf="adamw", sgd="sgd", adafactor="adafactor"),
    ),
    "adam_epsilon": ForeignKey(_TRAINER, "optimizer.eps", None, _same),
    "adam_beta1": ForeignKey(_TRAINER, "optimizer.betas", "the first of the two numbers"),
    "adam_beta2": ForeignKey(_TRAINER, "optimizer.betas", "the second of the two numbers"),
    "lr_scheduler": ForeignKey(f"{_AXOLOTL}, {_NEMO}", "schedule.name", None, _same),
    "lr_scheduler_type": ForeignKey(f"{_TRAINER}, {_LLAMA_FACTORY}", "schedule.name", None, _same),
    "warmup_steps": ForeignKey(f"{_TRAINER}, {_AXOLOTL}", "schedule.warmup", "a whole number is steps", _same),
    "lr_warmup_steps": ForeignKey(_NEMO, "schedule.warmup", "a whole number is steps", _same),
    "warmup_ratio": ForeignKey(
        f"{_TRAINER}, {_AXOLOTL}, {_LLAMA_FACTORY}",
        "schedule.warmup",
        "a number with a point is a fraction of all steps",
        _same,
    ),
    "min_learning_rate": ForeignKey("other tools", "schedule.min_lr", None, _same),
    # evaluation, checkpoints, tracking
    "eval_steps": ForeignKey(f"{_TRAINER}, {_AXOLOTL}", "evaluation.every", None, _same),
    "val_every_steps": ForeignKey(_NEMO, "evaluation.every", None, _same),
    "evals_per_epoch": ForeignKey(_AXOLOTL, "evaluation.every", "a number of steps, or epoch"),
    "eval_strategy": ForeignKey(
        _TRAINER, "evaluation.every", "a number of steps, epoch or never", _one_of(epoch="epoch", no="never")
    ),
    "evaluation_strategy": ForeignKey(
        _TRAINER, "evaluation.every", "a number of steps, epoch or never", _one_of(epoch="epoch", no="never")
    ),
    "metric_for_best_model": ForeignKey(_TRAINER, "evaluation.best.metric", None, _same),
    "greater_is_better": ForeignKey(_TRAINER, "evaluation.best.mode", None, _one_of(true="max", false="min")),
    "load_best_model_at_end": ForeignKey(
        _TRAINER, None, "nothing needs to be set: the run folder links `best`, which evaluate and export use"
    ),
    "early_stopping_patience": ForeignKey(f"{_TRAINER}, {_AXOLOTL}", "evaluation.early_stopping.patience", None, _same),
    "save_steps": ForeignKey(f"{_TRAINER}, {_AXOLOTL}", "checkpoint.every", None, _same),
    "ckpt_every_steps": ForeignKey(_NEMO, "checkpoint.every", None, _same),
    "saves_per_epoch": ForeignKey(_AXOLOTL, "checkpoint.every", "a number of steps, epoch or end"),
    "save_strategy": ForeignKey(
        _TRAINER, "checkpoint.every", "a number of steps, epoch or end", _one_of(epoch="epoch", no="end")
    ),
    "save_total_limit": ForeignKey(f"{_TRAINER}, {_AXOLOTL}", "checkpoint.keep", None, _same),
    "resume_from_checkpoint": ForeignKey(_TRAINER, None, "remove the key and run `frostline train CONFIG --resume`"),
    "overwrite_output_dir": ForeignKey(_TRAINER, None, "remove the key and run `frostline train CONFIG --overwrite`"),
    "logging_dir": ForeignKey(_TRAINER, "output_dir", "all of a run is in one folder"),
    "report_to": ForeignKey(_TRAINER, "tracking", "one key a place: tracking: {tensorboard: true}"),
    "use_tensorboard": ForeignKey(_AXOLOTL, "tracking.tensorboard", None, _same),
    "wandb_project": ForeignKey(_AXOLOTL, "tracking.wandb", None, lambda value: {"project": value}),
}
