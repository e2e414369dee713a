"""Hugging Face's Trainer over MRC: the process group is made by name first, and the arguments take it.

torchrun --nproc-per-node 2 with_trainer.py
"""

import tempfile

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
dist.init_process_group("mrc")


# Numbers in a row, from different starts.
sequences = [(torch.arange(16) + index) % 32 for index in range(256)]
examples = [{"input_ids": tokens, "labels": tokens} for tokens in sequences]

with tempfile.TemporaryDirectory() as directory:
    arguments = TrainingArguments(
        directory,
        use_cpu=True,
        max_steps=30,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        logging_steps=10,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=1,
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    trainer = Trainer(model, arguments, train_dataset=examples)
    trainer.train()
    if dist.get_rank() == 0:
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print(f"{dist.get_backend()}: loss {losses[0]:.3f}, then {losses[-1]:.3f}")
dist.destroy_process_group()
