"""``ropescale finetune``: the short adaptation after a schedule is put in."""
