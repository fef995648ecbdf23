# SPDX-License-Identifier: Apache-2.0
"""NCCL's collectives through torch.distributed, one process a GPU.

    python3 nccl_bench.py --ops all_reduce,all_gather --sizes 8,1048576 [--gpus N] [--limit SECONDS]

Starts a process for each GPU and writes lines of JSON: one about itself, then
one for each operation and size. Which transport NCCL takes is its environment's
to say.

Before each sample the ranks meet in a tiny all_reduce. A sample is from the call
until a poll finds it done, of the slowest rank; seconds is the median.
train_seconds is that of a train of calls, waited for at its end, a call. Bytes
are the longer of a rank's buffers. Elements are whole numbers in float32, so
every order of a sum gives the same bits; destinations are filled with NaN
before, and every element is compared.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "sendrecv")
ELEMENT = 4  # bytes of a float32
TRAIN = 20  # calls; an all_reduce in place multiplies its data each time
WARM = 3


def say(line):
    print(json.dumps(line), flush=True)


def whole(op, size, ranks):
    """The bytes nearest below a size of which every rank has a whole share."""
    unit = ELEMENT
    if op in ("all_gather", "reduce_scatter"):
        unit *= ranks
        if size >= 16 * ranks:
            unit = 16 * ranks
    return max(size // unit, 1) * unit


def samples(size):
    """How many: the same on every rank, fewer where one is long."""
    return min(max((64 << 20) // size, 3), 50)


class Worker:
    def __init__(self, torch, dist, rank, ranks, store):
        self.torch, self.dist = torch, dist
        self.rank, self.ranks, self.store = rank, ranks, store
        self.device = torch.device("cuda", rank)
        self.end = torch.cuda.Event()
        self.meeting = torch.zeros(1, device=self.device)
        self.key = 0

    def data(self, rank, n, first=0):
        """A rank's elements: whole numbers of which 2^13 sum up exactly."""
        i = self.torch.arange(first, first + n, device=self.device, dtype=self.torch.int64)
        return ((i * 31 + rank * 17) % 1021).to(self.torch.float32)

    def prepare(self, op, size):
        """The call, what resets its buffers, the result, and what that should be."""
        torch, dist, rank, ranks = self.torch, self.dist, self.rank, self.ranks
        n = size // ELEMENT
        share = n // ranks
        last = (rank - 1) % ranks
        poison = float("nan")
        if op == "all_reduce":  # in place, as torch has it
            src, dst = self.data(rank, n), torch.empty(n, device=self.device)
            want = sum((self.data(q, n) for q in range(1, ranks)), self.data(0, n))
            return lambda: dist.all_reduce(dst), lambda: dst.copy_(src), dst, want
        if op == "all_gather":
            src, dst = self.data(rank, share), torch.empty(share * ranks, device=self.device)
            want = torch.cat([self.data(q, share) for q in range(ranks)])
            return lambda: dist.all_gather_into_tensor(dst, src), lambda: dst.fill_(poison), dst, want
        if op == "reduce_scatter":
            src, dst = self.data(rank, share * ranks), torch.empty(share, device=self.device)
            parts = [self.data(q, share, rank * share) for q in range(ranks)]
            want = sum(parts[1:], parts[0])
            return lambda: dist.reduce_scatter_tensor(dst, src), lambda: dst.fill_(poison), dst, want
        want = self.data(0, n)
        src, dst = self.data(rank, n), torch.full((n,), poison, device=self.device)
        if op == "broadcast":  # in place on the root, as torch has it
            return lambda: dist.broadcast(dst, 0), lambda: dst.copy_(src) if rank == 0 else dst.fill_(poison), dst, want
        send = dist.P2POp(dist.isend, src, (rank + 1) % ranks)
        recv = dist.P2POp(dist.irecv, dst, last)
        todo = [send, recv]
        if op == "sendrecv":
            want = self.data(last, n)
        elif rank == 1:
            todo = [recv]
        else:
            todo = [send] if rank == 0 else []
            dst = want  # nothing arrives

        def exchange():
            for work in dist.batch_isend_irecv(todo) if todo else []:
                work.wait()

        return exchange, lambda: dst.fill_(poison) if recv in todo else None, dst, want

    def meet(self):
        self.dist.all_reduce(self.meeting)
        self.torch.cuda.synchronize()

    def wait(self):
        self.end.record(self.torch.cuda.current_stream())
        while not self.end.query():
            pass

    def once(self, call):
        began = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - began

    def gather(self, value):
        """What every rank says, on rank 0."""
        self.key += 1
        if self.rank != 0:
            self.store.set(f"{self.key}/{self.rank}", json.dumps(value))
            return None
        others = [json.loads(self.store.get(f"{self.key}/{r}")) for r in range(1, self.ranks)]
        return [value, *others]

    def measure(self, op, size):
        size = whole(op, size, self.ranks)
        call, reset, dst, want = self.prepare(op, size)
        wrong, seconds = 0, []
        for i in range(WARM + samples(size)):
            reset()
            self.torch.cuda.synchronize()
            self.meet()
            took = self.once(call)
            if i >= WARM:
                seconds.append(took)
            if i in (0, WARM + samples(size) - 1):
                wrong += int((dst != want).sum()) * ELEMENT  # NaN differs from all
        reset()
        self.torch.cuda.synchronize()
        self.meet()
        count = min(samples(size), TRAIN)
        began = time.perf_counter()
        for _ in range(count):
            call()
        self.wait()
        train = (time.perf_counter() - began) / count
        if op != "all_reduce":  # which has multiplied its data
            wrong += int((dst != want).sum()) * ELEMENT
        all_ranks = self.gather({"seconds": seconds, "train": train, "wrong": wrong})
        if all_ranks is None:
            return
        slowest = sorted(max(s) for s in zip(*(r["seconds"] for r in all_ranks)))
        cuts = statistics.quantiles(slowest, n=20, method="inclusive")
        say(
            {
                "op": op,
                "bytes": size,
                "ranks": self.ranks,
                "proto": "default",
                "seconds": statistics.median(slowest),
                "p5_seconds": cuts[0],
                "p95_seconds": cuts[-1],
                "count": len(slowest),
                "train_seconds": max(r["train"] for r in all_ranks),
                "train_count": count,
                "wrong": sum(r["wrong"] for r in all_ranks),
            }
        )


def work(args, rank):
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    limit = timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", args.port, args.gpus, rank == 0, timeout=limit)
    dist.init_process_group(
        "nccl", store=store, rank=rank, world_size=args.gpus, timeout=limit, device_id=torch.device("cuda", rank)
    )
    if rank == 0:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        say({"about": f"one process a GPU, PyTorch {torch.__version__}", "nccl": version, "cuda": torch.version.cuda, "gpus": args.gpus})
    worker = Worker(torch, dist, rank, args.gpus, store)
    for op in args.ops.split(","):
        for size in args.sizes.split(","):
            worker.measure(op, int(size))
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def lead(args):
    """Starts a process a GPU, and ends all when one fails or time is over."""
    if args.gpus == 0:
        import torch

        args.gpus = torch.cuda.device_count()
    if args.gpus < 2:
        raise ValueError(f"{args.gpus} GPUs: two at least")
    command = [sys.executable, os.path.abspath(__file__), "--ops", args.ops, "--sizes", args.sizes]
    command += ["--gpus", str(args.gpus), "--port", str(free_port())]
    workers = [subprocess.Popen([*command, "--rank", str(r)]) for r in range(args.gpus)]
    until = time.monotonic() + args.limit
    try:
        while any(w.poll() is None for w in workers):
            codes = [w.poll() for w in workers]
            if any(codes):
                raise RuntimeError(f"the processes ended with {codes}")
            if time.monotonic() > until:
                raise RuntimeError(f"given up after {args.limit:g} s")
            time.sleep(0.05)
        if any(w.returncode for w in workers):
            raise RuntimeError(f"the processes ended with {[w.returncode for w in workers]}")
    finally:
        for w in workers:
            if w.poll() is None:
                w.kill()
        for w in workers:
            w.wait()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ops", default="all_reduce")
    p.add_argument("--sizes", default="1048576")
    p.add_argument("--gpus", type=int, default=0)
    p.add_argument("--limit", type=float, default=120)
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--rank", type=int, default=-1)
    args = p.parse_args()
    try:
        unknown = set(args.ops.split(",")) - set(OPS)
        if unknown:
            raise ValueError(f"unknown operations: {sorted(unknown)}")
        if args.rank < 0:
            lead(args)
        else:
            work(args, args.rank)
    except Exception as e:
        say({"error": f"{type(e).__name__}: {e}"})
        sys.stdout.flush()
        os._exit(1)  # what hangs on a GPU would hang the exit


if __name__ == "__main__":
    main()
