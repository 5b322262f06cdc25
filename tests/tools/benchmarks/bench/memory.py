"""one window with a head of 4,096 by 128,256, against the logits alone (Linux)."""

from __future__ import annotations

import json
import subprocess
import sys

import sides

PROGRAM = """
import json, sys
from pathlib import Path
import models, torch
from ropescale.evals import perplexity
length = int(sys.argv[1])
model = models.llama(hidden_size=4096, intermediate_size=256, vocab_size=128256, num_attention_heads=32,
                     num_key_value_heads=1, tie_word_embeddings=True, max_position_embeddings=4096)
ids = torch.randint(128256, (length,)).tolist()
def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))
perplexity(model, [ids[:16]], [16])
Path("/proc/self/clear_refs").write_text("5")  # the peak so far was the making of the model
before = status("VmRSS")
perplexity(model, [ids], [length])
print(json.dumps([before, status("VmHWM")]))
"""

LENGTH = 1024


def measure(seconds: float) -> list[sides.Row]:
    """Returns the peak above the loaded model over what whole fp32 logits would take."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(LENGTH)], capture_output=True, text=True, check=True)
    before, peak = json.loads(done.stdout.splitlines()[-1])
    whole = LENGTH * 128256 * 4
    note = f"{(peak - before) / 1e6:,.0f} MB above the model's {before / 1e6:,.0f} MB; logits {whole / 1e6:,.0f} MB"
    return [sides.Row(f"peak of {LENGTH:,} tokens, over their fp32 logits", (peak - before) / whole, note=note)]
