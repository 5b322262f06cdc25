"""PEFT adapters: finding their base, attaching them, saving them beside a base that carries the schedule."""
