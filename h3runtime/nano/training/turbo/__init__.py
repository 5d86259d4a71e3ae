"""The few-step adapter of h3-nano: its own DiT's trajectories distilled into 4 forwards, as the public Turbo LoRAs are.

schedule    where the published rule steps, and where the teacher steps in between
teacher     the package's masters, as modules to learn from
side        LoRA pairs beside a DiT's linears, differentiable
student     all pairs of one training, their running mean, pieces
landing     what a step has to come to: where many small steps of the teacher lead
distilling  the training
adapter     the file, in ComfyUI's Turbo layout
stepping    how far each step is from where the teacher leads, with and without it
judging     clips with and without it, judged
command     `python -m h3runtime.nano.training.turbo OUT`
"""
