"""The command line: `einpage show | plan | run | train | generate | chat | verify | pack | machine | cache`. Arguments in, exit status out.

0 done, 1 our bug, 2 the user's mistake or a full disk, 3 does not fit, 130 interrupted. With `--json` stdout holds one JSON object (of
`generate` one a prompt, of `chat` one a turn, each on a line) and nothing else; what is for a person's eyes while waiting goes to
stderr. `show`, `plan`, `verify` and `pack` never import torch.
"""

from __future__ import annotations

import argparse
import errno
import re
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from einpage.einsum_front.base.dtype import RUN_DTYPES
from einpage.einsum_front.base.errors import EinpageError, UsageError, one_line
from einpage.einsum_front.graph.program import WeightsAs
from einpage.exec.command.judged_files import pack_command, verify_command
from einpage.exec.command.machine import cache_command, machine_command
from einpage.exec.command.options import DTYPE, PromptArgument, argument_text
from einpage.exec.command.plan import plan_command, show_command
from einpage.exec.errors import full_memory
from einpage.exec.system.find_spec import spec_names
from einpage.exec.system.interrupt import exit_on_interrupt
from einpage.exec.system.standard_streams import flush_stdout
from einpage.memplan.bounds.bounds import Effort
from einpage.memplan.horizons.recompute import Recompute
from einpage.memplan.machine.profile import machine_names
from einpage.memplan.schedule.static_plans import Policy


def execute(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; every error is one message on stderr. Interrupts pass."""
    if sys.stdout is None:
        return _refused("stdout is closed, so nobody would see the result; send it to a file, or to /dev/null", 2)
    try:
        try:
            arguments = parser().parse_args(argv)
            _refuse_empty(arguments)
            return int(arguments.command_function(arguments))
        finally:
            if lost := flush_stdout():
                raise UsageError(lost)
    except EinpageError as error:
        return _refused(str(error), error.exit_status)
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.filename is None and error.errno not in DISK:
            return _bug()
        where = "" if error.filename is None else f"{str(error.filename)[:MOST_NAME]}: "
        return _refused(f"{where}{error.strerror or error}", 2)
    except Exception as error:
        lost = full_memory(error)
        return _bug() if lost is None else _refused(f"the host's memory is full: {lost}; free some, or make the problem smaller", 3)


def _refuse_empty(arguments: argparse.Namespace) -> None:
    """Raises UsageError for an option or a file whose text is empty, as of an unset variable of the shell: it would count as not given."""
    for name, value in vars(arguments).items():
        if value == "":
            word = name.replace("_", "-")
            raise UsageError(f"the text given for `{word}` is empty; write what is meant, or leave it out")


DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""What a disk says that no more can be written to."""
MOST_NAME = 300
"""Characters of a file's name in a message."""


def _refused(message: str, status: int) -> int:
    print(f"einpage: {_rows(message)}", file=sys.stderr)
    return status


def _rows(message: str) -> str:
    """The message on one line, and the rows under it, which are indented: a name that it quotes may hold anything."""
    return "\n".join(one_line(row, MOST_NAME) for row in re.split(r"\n(?=  )", message))


class _CommandLine(argparse.ArgumentParser):
    """Quotes what stands on the command line at no more length than other errors do."""

    def error(self, message: str) -> NoReturn:
        super().error(_rows(message))


def _bug() -> int:
    traceback.print_exc()
    return _refused("this is a bug of ours; the lines above say where", 1)


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def parser() -> argparse.ArgumentParser:
    """The grammar of the command line."""
    root: argparse.ArgumentParser = _CommandLine(
        prog="einpage", description="A model as math in YAML, a plan for every byte, a run that replays it."
    )
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_show, _add_plan, _add_run, _add_train, _add_generate, _add_chat, _add_verify, _add_pack, _add_machine, _add_cache):
        add(commands)
    return root


def _add_show(commands: Commands) -> None:
    p = commands.add_parser("show", help="sizes, FLOPs, what fused and what did not, the largest working set")
    _spec_arguments(p)
    _outputs_argument(p)
    p.add_argument("--train", action="store_true", help="the statements of a training step instead: loss, gradients, updates")
    p.set_defaults(command_function=show_command)


def _add_plan(commands: Commands) -> None:
    p = commands.add_parser("plan", help="plan under a budget, judge the plan, predict its time, bound it")
    _spec_arguments(p, may_be_absent=True)
    _outputs_argument(p)
    _plan_arguments(p, budget_required=False)
    _passes_arguments(p)
    _no_saved_plan(p)
    p.add_argument("--graph", metavar="FILE.json[.gz]", help="plan an access trace instead of a spec; its tasks have their times")
    p.add_argument("--machine", metavar="NAME|FILE", help=f"a profile: {', '.join(machine_names())} (default: cpu, for a spec)")
    statics = "a static plan in place of the planner's (auto, the default)"
    p.add_argument("--policy", choices=[p.value for p in Policy], default=Policy.AUTO.value, help=statics)
    p.add_argument("--free-order", action="store_true", help="reorder independent tasks where that is faster")
    _recompute_argument(p)
    p.add_argument("--warm", action="store_true", help="start with weights on the device, as far as they fit")
    p.add_argument("--out", metavar="FILE", help="save the plan as JSON")
    ahead = "plan a generation of N positions, the prompt's `seq` among them: the plan set that generate --plan replays"
    p.add_argument("--generate", type=int, metavar="N", help=ahead)
    p.add_argument(
        "--sweep", metavar="NAME=LOW:HIGH[:N]", help="a plan for each budget (budget=4GiB:40GiB) or size (seq=512:8192): time against it"
    )
    efforts = "fast: no linear programme; lp: always solve; auto: where it is cheap and the plan is not known to be good (default)"
    p.add_argument("--bounds", choices=[e.value for e in Effort], default=Effort.AUTO.value, help=efforts)
    p.set_defaults(command_function=plan_command, plan_worth=False)


def _recompute_argument(p: argparse.ArgumentParser) -> None:
    policies = "make activations again rather than offload them: where that is faster, all, those with the most bytes a second (never)"
    p.add_argument("--recompute", choices=[r.value for r in Recompute], default=Recompute.NEVER.value, help=policies)


def _add_run(commands: Commands) -> None:
    p = commands.add_parser("run", help="plan and run with real weights")
    _spec_arguments(p, may_be_absent=True)
    _outputs_argument(p)
    _plan_arguments(p, budget_required=False)
    _passes_arguments(p)
    _device_arguments(p)
    _prompt_arguments(p)
    _no_saved_plan(p)
    p.add_argument("--tokens", metavar="FILE", help="JSON: a list of token ids, or a list of such lists")
    p.add_argument("--input", action="append", default=[], metavar="NAME=FILE", help="a .json, .npy or .safetensors array")
    _recompute_argument(p)
    p.add_argument("--perplexity", action="store_true", help="of the prompt or tokens")
    searched = "look at every result, and name the first task from which NaN or inf reaches an output (slower)"
    p.add_argument("--find-nan", action="store_true", help=searched)
    p.add_argument("--logits", metavar="FILE", help="save the outputs as safetensors")
    p.add_argument("--trace", metavar="FILE", help="save a Chrome/Perfetto trace")
    p.set_defaults(
        command_function=_run_command, warm=False, policy=Policy.AUTO.value, free_order=False, bounds=Effort.FAST.value, plan_worth=True
    )


PLANS_OF_A_GENERATION = {
    "warm": False, "policy": Policy.AUTO.value, "free_order": False, "bounds": Effort.FAST.value, "plan_worth": True,
    "outputs": None, "passes": None,
}  # fmt: skip
"""What generate, chat and train do not ask."""
ONCE = {"recompute": Recompute.NEVER.value}
"""Nor, of these, generate and chat: where there are no gradients nothing is worth a second run."""


def _add_train(commands: Commands) -> None:
    p = commands.add_parser("train", help="train the weights of a spec with `train:`, in a budget of memory")
    _spec_arguments(p, may_be_absent=True)
    _plan_arguments(p, budget_required=False, budget="the device arena: 64MiB, 8GiB, or 40%% of what a step takes with room for everything")
    _device_arguments(p)
    _no_saved_plan(p)
    p.add_argument("--data", metavar="FILE", help="a text (UTF-8): its tokens in sequences of --seq, in order, again and again")
    p.add_argument("--tokens", metavar="FILE", help="JSON: a list of sequences of token ids, each used whole, in order, again and again")
    p.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE", help="an array: of an input's shape, or one more axis, one a step"
    )
    p.add_argument("--steps", type=int, required=True, metavar="N", help="of the whole run; one that is resumed takes those that are left")
    p.add_argument("--batch", type=int, metavar="N", help="sequences of a step (default: 1)")
    p.add_argument("--seq", type=int, metavar="N", help="tokens of a sequence (default: of --data 128, of --tokens those of the longest)")
    p.add_argument("--micro-batches", type=int, metavar="N", help="take the sequences of a step in N pieces, and add up what each gives")
    p.add_argument("--lr", type=float, metavar="X", help="the learning rate (default: the spec's)")
    p.add_argument("--weight-decay", type=float, metavar="Y", help="the optimiser's number `decay` (default: the spec's)")
    scaled = "`none`, `dynamic`, or numbers: start=65536,growth=2,backoff=0.5,interval=2000 (default: the spec's; dynamic in fp16)"
    p.add_argument("--loss-scale", metavar="HOW", help=scaled)
    p.add_argument(
        "--schedule", choices=("constant", "linear", "cosine"), help="how the rate falls, to 0 after the last step (default: constant)"
    )
    p.add_argument("--warmup", type=int, metavar="N", help="steps in which the rate rises (default: 0)")
    p.add_argument("--out", metavar="FOLDER", help="where checkpoints are kept, and the weights at the end")
    p.add_argument("--checkpoint-every", type=int, metavar="N", help="steps; one is written at the end in any case")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    p.add_argument("--trace", metavar="FILE", help="save a Chrome/Perfetto trace of the last step")
    p.add_argument("--timeline", metavar="FILE", help="write the picture of every byte of a step as one HTML page (or .svg)")
    _recompute_argument(p)
    p.set_defaults(command_function=_train_command, **PLANS_OF_A_GENERATION)


def _add_generate(commands: Commands) -> None:
    p = commands.add_parser("generate", help="text after a prompt, token by token")
    _spec_arguments(p, may_be_absent=True)
    _plan_arguments(p, budget_required=False)
    _device_arguments(p)
    _prompt_arguments(p)
    p.add_argument("--plan", metavar="FILE", help="replay the plan set of this file, which plan --generate saved")
    _sampling_arguments(p, 64)
    p.set_defaults(command_function=_generate_command, **PLANS_OF_A_GENERATION, **ONCE)


def _add_chat(commands: Commands) -> None:
    p = commands.add_parser("chat", help="a dialogue: a line of stdin is a turn")
    _spec_arguments(p, may_be_absent=True)
    _plan_arguments(p, budget_required=False)
    _device_arguments(p)
    _no_saved_plan(p)
    p.add_argument("--system", type=argument_text, metavar="TEXT", help="what the dialogue begins with, in the role `system`")
    p.add_argument("--positions", type=int, default=1024, metavar="N", help="of the whole dialogue (default: 1024)")
    _sampling_arguments(p, 256)
    p.set_defaults(command_function=_chat_command, **PLANS_OF_A_GENERATION, **ONCE)


def _sampling_arguments(p: argparse.ArgumentParser, max_new: int) -> None:
    p.add_argument("--max-new", type=int, default=max_new, metavar="N", help="tokens at most (default: %(default)s)")
    p.add_argument("--greedy", action="store_true", help="the best token each time")
    p.add_argument("--temperature", type=float, metavar="T", help="of the draw (default: 0.8)")
    p.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K best (default: all)")
    p.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw from the best that have P of the probability together")
    p.add_argument("--min-p", type=float, default=0.0, metavar="P", help="draw from those at least P times as probable as the best")
    p.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help="make tokens that occurred less probable")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (default: 0)")
    guessed = "read N tokens beside the last one in each pass, looked up in the text so far: those that come cost no pass of their own"
    p.add_argument("--lookup", type=int, default=0, metavar="N", help=guessed)
    p.add_argument(
        "--stop", action="append", type=argument_text, default=[], metavar="TEXT", help="end before this text; repeat for others"
    )


def _device_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("--machine", metavar="NAME|FILE", help="plan for this profile instead of the measured one")
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    p.add_argument(
        "--dispatch",
        choices=("dynamic", "static", "serial"),
        help="default: dynamic (of run with --find-nan: serial; of generate and chat: dynamic or serial, whichever is the faster)",
    )
    p.add_argument("--kernels", choices=("auto", "torch", "triton"), default="auto")
    ways = "how a GPU multiplies fp32: on tensor cores, each product within 1.2e-6 (tf32x3, the default), or exactly and far slower (ieee)"
    p.add_argument("--fp32-products", choices=("tf32x3", "ieee"), help=ways)
    p.add_argument("--threads", type=int, metavar="N", help="threads a kernel may use")


def _prompt_arguments(p: argparse.ArgumentParser) -> None:
    prompts = "a text, or that of a file or stdin (UTF-8, less one final newline); @@… for a text that begins with @; repeat for a batch"
    p.add_argument("--prompt", action="append", type=lambda text: PromptArgument(text, False), metavar="TEXT|@FILE|-", help=prompts)
    literal = "a prompt as it is, whatever it begins with; --prompt-text=-… for one that begins with a dash"
    p.add_argument(
        "--prompt-text", action="append", dest="prompt", type=lambda text: PromptArgument(text, True), metavar="TEXT", help=literal
    )


class _NoSavedPlan(argparse.Action):
    """`--plan` of a command that replays none: said, since it would be short for `--plan-seconds` and `--plan-steps`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        replays = "a plan set that `plan --generate N --out FILE` saved is replayed by `generate --plan FILE`"
        parser.error(f"--plan: this command makes its plan anew, from --budget and the same options; {replays}")


def _no_saved_plan(p: argparse.ArgumentParser) -> None:
    p.add_argument("--plan", action=_NoSavedPlan, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _add_verify(commands: Commands) -> None:
    p = commands.add_parser("verify", help="judge a saved plan again")
    p.add_argument("plan", metavar="PLAN.json")
    p.add_argument("--spec", metavar="SPEC", help="prove too that its graph is what this spec says")
    p.add_argument("--weights", metavar="PATH|random:SEED", help="for --spec: the checkpoint that gave the sizes, if one did")
    p.add_argument("--graph", metavar="FILE.json[.gz]", help="prove too that its graph is this access trace")
    p.add_argument("--json", action="store_true")
    p.set_defaults(command_function=verify_command)


def _add_cache(commands: Commands) -> None:
    p = commands.add_parser(
        "cache",
        help="what is kept on the disk to be made once, packed weights and machine code: list it, remove it, limit the bytes of weights",
    )
    p.add_argument("--clear", action="store_true", help="remove all")
    p.add_argument("--limit", metavar="SIZE", help="how many bytes packed weights may have from now on: the least recently used go first")
    p.add_argument("--json", action="store_true", help="one JSON object")
    p.set_defaults(command_function=cache_command)


def _add_pack(commands: Commands) -> None:
    p = commands.add_parser("pack", help="place buffers whose live ranges are known: minimalloc's CSV")
    p.add_argument("file", metavar="FILE.csv", help="columns id,lower,upper,size; a buffer is live in [lower, upper)")
    p.add_argument("--capacity", required=True, metavar="SIZE", help="the height to stay within: 1MiB, 1048576")
    p.add_argument("--seconds", type=float, default=60.0, metavar="S", help="stop searching after this long (default: 60)")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of the search's choices (default: 0)")
    p.add_argument("--out", metavar="FILE.csv", help="where it fits, write the same columns and offset")
    p.add_argument("--json", action="store_true", help="one JSON object on stdout, where it does not fit as well")
    p.set_defaults(command_function=pack_command)


def _add_machine(commands: Commands) -> None:
    p = commands.add_parser("machine", help="the profiles there are, or this machine's own")
    p.add_argument("name", nargs="?", help="a profile to print")
    p.add_argument("--measure", action="store_true", help="measure this machine and cache the result for `run`")
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), help="what --measure measures (default: auto)")
    p.add_argument("--json", action="store_true")
    p.set_defaults(command_function=machine_command)


def _spec_arguments(p: argparse.ArgumentParser, may_be_absent: bool = False) -> None:
    p.add_argument(
        "spec", metavar="SPEC", nargs="?" if may_be_absent else None, help=f"a YAML file, or one that ships: {', '.join(spec_names())}"
    )
    p.add_argument("--set", action="append", default=[], metavar="K=V", help="a size or scalar of the spec")
    p.add_argument("--weights", metavar="PATH|random:SEED", help="a checkpoint: its metadata gives the sizes")
    p.add_argument(
        "--dtype",
        choices=[d.value for d in RUN_DTYPES],
        default=None if may_be_absent else DTYPE,
        help=f"default: {DTYPE}",
    )
    p.add_argument(
        "--weights-as",
        choices=[WeightsAs.STORED.value, WeightsAs.RUN.value],
        help="how weights wait and travel: as the checkpoint stores them (default on the CPU where it is quantised), or in the run's dtype",
    )
    p.add_argument("--split", metavar="f=4,v=16", help="fix how many pieces letters are split into")
    p.add_argument("--no-fuse", metavar="WHAT", help="fusions to leave out: attention (its scores become tensors)")
    p.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _plan_arguments(p: argparse.ArgumentParser, budget_required: bool = True, budget: str = "the device arena: 64MiB, 8GiB, 1.5GB") -> None:
    p.add_argument("--budget", required=budget_required, metavar="SIZE", help=budget)
    p.add_argument("--host-budget", metavar="SIZE", help="the host arena: weights that fit neither are read from the disk in each pass")
    p.add_argument("--h2d", metavar="RATE", help="override the profile's host → device bytes/s")
    p.add_argument("--d2h", metavar="RATE", help="override the profile's device → host bytes/s")
    p.add_argument("--device-bytes", metavar="SIZE", help="override the profile's device memory")
    searched = "search no longer for a faster plan (default: 5, for --graph 10; 0: none), nor when one is within 1 %% of its bounds"
    p.add_argument("--plan-seconds", type=float, metavar="S", help=searched)
    p.add_argument("--plan-steps", type=int, metavar="N", help="instead: search N steps, for the same plan on every machine")


def _outputs_argument(p: argparse.ArgumentParser) -> None:
    p.add_argument("--outputs", metavar="NAMES", help="comma-separated; default: the first the spec declares")


def _passes_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("--passes", type=int, metavar="N", help="run N times in a row: plan a pass in which the weights that fit are resident")
    p.add_argument("--timeline", metavar="FILE", help="write the picture of every byte as one HTML page (or .svg)")


def _run_command(a: argparse.Namespace) -> int:
    with exit_on_interrupt():  # torch takes seconds
        from einpage.exec.command.run import run_command
    return run_command(a)


def _train_command(a: argparse.Namespace) -> int:
    with exit_on_interrupt():
        from einpage.exec.command.train import train_command
    return train_command(a)


def _chat_command(a: argparse.Namespace) -> int:
    with exit_on_interrupt():
        from einpage.exec.command.generate import chat_command
    return chat_command(a)


def _generate_command(a: argparse.Namespace) -> int:
    with exit_on_interrupt():
        from einpage.exec.command.generate import generate_command
    return generate_command(a)
