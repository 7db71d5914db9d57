"""The same run with `transformers.Trainer` and `peft`; prints a line of JSON. Called by `run.py`.

The examples are those that Frostline's recipe encoded, in the order of its first epoch, so that both sides see the same
tokens in the same batches.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import cases
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from frostline.data import EpochOrder
from frostline.integrations.hf_models import local_folder
from frostline.recipes import runs


class InOrder(Trainer):
    """Trainer that takes the examples one after the other."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)


class Examples(torch.utils.data.Dataset[dict[str, Any]]):
    """The encoded examples, as Trainer wants them."""

    def __init__(self, examples: Any) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(self.examples[index])


def main(name: str, folder: str) -> None:
    """Prepare outside the clock, train and save inside."""
    cases.prepare_data(name)
    loaded = runs.read_config(cases.CASES[name].config)
    config, assembly = loaded.config, runs.assemble(loaded.config, loaded.origins)
    data = assembly.data
    assert data is not None
    assert config.peft is not None
    path = local_folder(assembly.location, weights=True).path
    torch.manual_seed(0)
    if name == "chat":
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        collator: Any = DataCollatorForSeq2Seq(assembly.tokenizer)
        task_type = "CAUSAL_LM"
    else:
        assert assembly.labels is not None
        model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=assembly.labels.num_labels)
        collator = DataCollatorWithPadding(assembly.tokenizer)
        task_type = "SEQ_CLS"
    peft = config.peft
    model = get_peft_model(
        model, LoraConfig(task_type, r=peft.rank, lora_alpha=2 * peft.rank, target_modules=list(peft.target_modules))
    )
    training = config.training
    arguments = TrainingArguments(
        output_dir=f"{folder}/trainer",
        per_device_train_batch_size=training.batch_size,
        num_train_epochs=training.epochs or 1,
        max_steps=training.max_steps or -1,
        learning_rate=config.learning_rate,
        weight_decay=0.0,
        warmup_steps=int(config.schedule.warmup),
        lr_scheduler_type="linear",
        max_grad_norm=training.max_grad_norm or 0.0,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
    )
    examples = data.train.examples
    ordered = [examples[index] for index in EpochOrder(len(examples), training.seed).order(0)]
    trainer = InOrder(model=model, args=arguments, train_dataset=Examples(ordered), data_collator=collator)
    started = time.perf_counter()
    result = trainer.train()
    trainer.save_model()
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print()
    print(json.dumps({"seconds": seconds, "peak_mb": peak, "loss": result.training_loss}))


if __name__ == "__main__":
    main(*sys.argv[1:])
