"""`python -m h3runtime.nano.training OUT`: train h3-nano, or go on training it.

    1  the video VAE and the audio VAE, side by side; the clips of the joint training are planned meanwhile
    2  all clips rendered and encoded once
    3  the DiT and the text encoder together, on every task
    4  the video VAE's decoder alone, behind latents that stay as they are
    5  masters, a sheet of samples, the latent upscaler

Each stage takes the seconds it is given and leaves pieces of at most 15 MB in OUT; `--resume` goes on from such a
folder, and a stage of 0 seconds takes what is there. `--within` bounds all of it: the joint training gets what the
others leave. `--span` says which part of a longer training this run is. An interrupt ends the joint training early, its
pieces and masters written. With several GPUs every process encodes clips of its own and gradients are averaged.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from h3runtime.nano import model
from h3runtime.nano.training import clips, curriculum, joint, keeping
from h3runtime.nano.training.audio_vae import train_audio_vae
from h3runtime.nano.training.choosing import choose
from h3runtime.nano.training.lectern import Lectern
from h3runtime.nano.training.looking import asked, look
from h3runtime.nano.training.masters import (
    AUDIO_VAE,
    TEXT_ENCODER,
    TRANSFORMER,
    UPSCALER,
    VIDEO_VAE,
    filled,
    write_transformer,
)
from h3runtime.nano.training.profiling import profile_joint
from h3runtime.nano.training.pupil import Pupil
from h3runtime.nano.training.tasks import SIDES
from h3runtime.nano.training.text_master import fill_unseen, write_text_master
from h3runtime.nano.training.upscaler import train_upscaler
from h3runtime.nano.training.video_profile import profile_video_vae
from h3runtime.nano.training.video_vae import POLISH, STATE, train_video_vae
from h3runtime.nano.vocabulary import Vocabulary
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_vae import VideoVae

Say = Callable[[str], None]
PROFILE_SECONDS = 45.0
"""Of each of the two profiles."""
STARTING = 8.0
"""Seconds that pass before this module's first line, and after its last."""
SAMPLING = 15.0
"""Seconds that masters and samples take, at most."""


def main(given: list[str] | None = None) -> int:
    arguments = parsed(given)
    arguments.out.mkdir(parents=True, exist_ok=True)
    world = max(1, torch.cuda.device_count()) if arguments.devices is None else arguments.devices
    if world == 1:
        _work(0, 1, arguments)
    else:
        _together([get_context("spawn").Process(target=_work, args=(i, world, arguments)) for i in range(world)])
    return 0


def parsed(given: list[str] | None) -> argparse.Namespace:
    """What was given; `ends`: when all has to be over, by the monotonic clock."""
    begun = time.monotonic() - STARTING
    arguments = _parser().parse_args(given)
    arguments.ends = begun + arguments.within if arguments.within else None
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m h3runtime.nano.training", description="Train h3-nano.")
    recipe = joint.Recipe()
    parser.add_argument("out", type=Path, help="Folder for pieces, masters, sheet and log.")
    parser.add_argument("--resume", type=Path, help="A folder of an earlier run to go on from.")
    parser.add_argument("--video-seconds", type=float, default=300.0, help="Video VAE; 0 takes the earlier.")
    parser.add_argument("--audio-seconds", type=float, default=240.0, help="Audio VAE; 0 takes the earlier.")
    parser.add_argument("--joint-seconds", type=float, default=1500.0, help="DiT and text encoder.")
    parser.add_argument("--within", type=float, help="Seconds for everything: joint training gets what is left.")
    parser.add_argument("--span", type=float, nargs=2, default=[0.0, 1.0], help="Part of the whole joint training.")
    parser.add_argument("--decoder-seconds", type=float, default=180.0, help="Video decoder alone; 0 leaves it.")
    parser.add_argument("--upscaler-seconds", type=float, default=60.0, help="Latent upscaler; 0 leaves it out.")
    parser.add_argument("--rate", type=float, default=recipe.rate, help="Learning rate of the joint training.")
    parser.add_argument("--rows", type=int, default=recipe.rows, help="Packed rows of a joint batch.")
    parser.add_argument("--shrink", type=float, default=1.0, help="Share of the clips that are made, for a trial.")
    parser.add_argument("--no-graph", action="store_true", help="Record no step of the joint training.")
    parser.add_argument("--compiled", action="store_true", help="Try compiled blocks too: a minute of compiling.")
    parser.add_argument("--profile", action="store_true", help="Say where steps spend their time, and end.")
    parser.add_argument("--samples", type=int, default=24, help="Clips sampled at the end, for a look.")
    parser.add_argument("--seed", type=int, default=0, help="Of the scenes and of the first weights.")
    parser.add_argument("--keep", type=Path, help="Folder of this machine, of one GPU, that keeps encoded clips.")
    parser.add_argument("--workers", type=int, default=8, help="Processes that plan clips, for each device.")
    parser.add_argument("--sizes", help="Clips of the joint training: WIDTHxHEIGHTxFRAMESxCLIPS, comma-separated.")
    parser.add_argument("--port", type=int, default=29511, help="On which several processes find each other.")
    parser.add_argument("--devices", type=int, help="How many GPUs. Default: all that there are; 1 on a CPU.")
    return parser


def _together(processes: list[BaseProcess]) -> None:
    """Run them to the end; where one fails, none is left waiting for it."""
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        if any(process.exitcode for process in processes):
            for process in processes:
                process.terminate()
        time.sleep(0.2)
    if any(process.exitcode for process in processes):
        raise SystemExit(f"training ended with {[process.exitcode for process in processes]}")


def _work(rank: int, world: int, arguments: argparse.Namespace) -> None:
    """One device's share of everything."""
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    say = _teller(arguments.out / "log.txt") if rank == 0 else _silent
    recipe = _recipe(arguments)
    shelves, references, video_vae, audio_vae = _prepared(rank, world, arguments, recipe, device, say)
    vocabulary = Vocabulary.load()
    pieces = arguments.resume if arguments.resume and list(arguments.resume.glob("joint-*")) else None
    pupil = Pupil.begin(vocabulary, device, arguments.seed, pieces)
    lectern = Lectern(shelves, references, vocabulary, pupil.dit)
    if arguments.profile:
        if rank == 0:
            profile_joint(joint.Trainer(pupil, lectern, recipe, say), PROFILE_SECONDS)
            profile_video_vae(device, PROFILE_SECONDS, say)
        return
    trainer = joint.Trainer(pupil, lectern, recipe, say, world, rank)
    seconds = _joint_seconds(arguments)
    if seconds > 0:
        joint.train(trainer, seconds=seconds, out=arguments.out, rank=rank, choose=choose)
    if rank == 0:
        fill_unseen(pupil.encoder, vocabulary, lectern.seen())
        write_transformer(pupil.dit, arguments.out / TRANSFORMER)
        write_text_master(pupil.encoder, arguments.out / TEXT_ENCODER, vocabulary)
        video_vae = _polish_decoder(arguments, device, video_vae)
        size = replace(recipe.sizes.sizes[0], clips=arguments.samples)
        batch = asked(pupil, vocabulary, size, "trained", 12345)
        say(f"{arguments.samples} clips judged: {look(pupil, batch, video_vae, audio_vae, arguments.out, 'sheet')}")
        _train_upscaler(arguments, device, video_vae)
    if world > 1:
        dist.destroy_process_group()


def _prepared(
    rank: int, world: int, arguments: argparse.Namespace, recipe: joint.Recipe, device: torch.device, say: Say
) -> tuple[list[clips.Shelf], clips.References, VideoVae, AudioVae]:
    """Both VAEs trained or taken, and the clips encoded with them, or those that an earlier call kept here."""
    sizes, seed = recipe.sizes.sizes, arguments.seed * 31 + rank
    masters = [arguments.out / VIDEO_VAE, arguments.out / AUDIO_VAE]
    keep = arguments.keep if world == 1 else None  # elsewhere the masters may not be there yet
    kept = None
    if not (arguments.video_seconds or arguments.audio_seconds):
        _train_vaes(rank, world, arguments, device)
        kept = keeping.taken(keeping.place(keep, sizes, seed, masters), device) if keep else None
    with clips.Planner(() if kept else sizes, seed, 0 if kept else arguments.workers) as planner:
        if arguments.video_seconds or arguments.audio_seconds:
            _train_vaes(rank, world, arguments, device)
        if world > 1:
            _join(rank, world, arguments.port, device)
        video_vae = filled(model.video_vae(), masters[0]).to(device)
        audio_vae = filled(model.audio_vae(), masters[1]).to(device)
        if kept:
            say("clips are those that were kept here")
            return *kept, video_vae, audio_vae
        references = clips.references(video_vae, audio_vae, device, SIDES)
        shelves = clips.shelves(sizes, planner, video_vae, audio_vae, device, say)
    if keep:
        keeping.keep(keeping.place(keep, sizes, seed, masters), shelves, references)
    return shelves, references, video_vae, audio_vae


def _joint_seconds(arguments: argparse.Namespace) -> float:
    """What is asked for, or what is left of the whole."""
    if arguments.ends is None or not arguments.joint_seconds:
        return float(arguments.joint_seconds)
    after = SAMPLING + arguments.decoder_seconds + arguments.upscaler_seconds
    left: float = arguments.ends - time.monotonic() - after
    return max(left, 1.0)


def _recipe(arguments: argparse.Namespace) -> joint.Recipe:
    whole = _sizes(arguments.sizes) if arguments.sizes else curriculum.Sizes()
    sizes = tuple(replace(size, clips=max(2, round(size.clips * arguments.shrink))) for size in whole.sizes)
    shelves = replace(whole, sizes=sizes)
    return joint.Recipe(
        rate=arguments.rate,
        rows=arguments.rows,
        seed=arguments.seed,
        span=(arguments.span[0], arguments.span[1]),
        graph=not arguments.no_graph,
        compiled=arguments.compiled,
        sizes=shelves,
    )


def _sizes(given: str) -> curriculum.Sizes:
    """Shelves as named, each drawn from as often as any other."""
    sizes = tuple(clips.Size(*map(int, size.split("x"))) for size in given.split(","))
    return curriculum.Sizes(sizes, (1.0,) * len(sizes))


def _train_vaes(rank: int, world: int, arguments: argparse.Namespace, device: torch.device) -> None:
    """The video VAE on the first device, the audio VAE on the last one, or beside it on the only one; a CPU has them
    in turn."""
    if device.type == "cpu":
        _train_video(arguments, device)
        _train_audio(arguments, device)
        return
    apart = get_context("spawn").Process(target=_train_audio, args=(arguments, device))
    if rank == world - 1:
        apart.start()
    if rank == 0:
        _train_video(arguments, device)
    if rank == world - 1:
        apart.join()
        if apart.exitcode:
            raise RuntimeError(f"the audio VAE's training ended with {apart.exitcode}")


def _train_video(arguments: argparse.Namespace, device: torch.device) -> None:
    say = _teller(arguments.out / "video_vae.log")
    held = _held(arguments, VIDEO_VAE)
    if arguments.video_seconds:
        state = held / STATE if held else None
        train_video_vae(arguments.out, arguments.video_seconds, device, state, arguments.seed, say)
    else:
        _take(held, VIDEO_VAE, arguments.out)
        if arguments.decoder_seconds:
            _take(held, STATE, arguments.out)


def _train_audio(arguments: argparse.Namespace, device: torch.device) -> None:
    say = _teller(arguments.out / "audio_vae.log")
    held = _held(arguments, AUDIO_VAE)
    if arguments.audio_seconds:
        train_audio_vae(arguments.out, arguments.audio_seconds, device, held, arguments.seed, say)
    else:
        _take(held, AUDIO_VAE, arguments.out)


def _polish_decoder(arguments: argparse.Namespace, device: torch.device, video_vae: VideoVae) -> VideoVae:
    """The video VAE with a decoder that has gone on alone; the DiT, which knows its latents, stays right."""
    if not arguments.decoder_seconds:
        return video_vae
    say, out = _teller(arguments.out / "decoder.log"), arguments.out
    train_video_vae(out, arguments.decoder_seconds, device, out / STATE, arguments.seed + 1, say, POLISH)
    return filled(model.video_vae(), out / VIDEO_VAE).to(device)


def _train_upscaler(arguments: argparse.Namespace, device: torch.device, video_vae: VideoVae) -> None:
    """The latent upscaler last: it needs the video VAE's latents alone, and nobody waits for it."""
    if arguments.upscaler_seconds:
        held = _held(arguments, UPSCALER)
        say = _teller(arguments.out / "upscaler.log")
        train_upscaler(arguments.out, arguments.upscaler_seconds, device, video_vae, held, arguments.seed, say)


def _held(arguments: argparse.Namespace, name: str) -> Path | None:
    """The folder to go on from, where it has this master."""
    folder: Path | None = arguments.resume
    return folder if folder and (folder / name).exists() else None


def _take(held: Path | None, name: str, out: Path) -> None:
    """An earlier run's file as it is."""
    if held is None or not (held / name).exists():
        raise SystemExit(f"{name}: 0 seconds to train it and none to go on from (--resume)")
    if held != out:
        (out / name).write_bytes((held / name).read_bytes())


def _join(rank: int, world: int, port: int, device: torch.device) -> None:
    """Wait for all devices and let them talk."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    dist.all_reduce(torch.ones(1, device=device))


def _teller(path: Path) -> Say:
    """Prints and keeps lines, each with the time."""
    begin = time.monotonic()

    def say(line: str) -> None:
        text = f"{time.monotonic() - begin:7.1f} {path.stem}: {line}"
        print(text, flush=True)
        with path.open("a") as file:
            file.write(text + "\n")

    return say


def _silent(line: str) -> None:
    pass
