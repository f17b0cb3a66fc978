"""The only readers of the machine: each probe returns facts or a reason, and judges nothing."""
