# SPDX-License-Identifier: Apache-2.0
"""A copy between two buffers of one GPU by way of the host, in PyTorch.

Method "ring" is the one that the library grew out of: pinned slots, a stream
each way, events between them; a copy of one piece goes through one slot on the
current stream, which is faster there. Method "plain" is what most programs do:
src.to("cpu").to("cuda"), through pageable memory.

Speaks the protocol of README.md:

    python3 staged_copy.py [GPU]
"""

import json
import sys
import time

import torch

WARM = 3e-3  # seconds
POISON = 255  # fills destinations; no byte of the data has this value
ROTATE = 64 << 20  # small copies rotate through this many bytes, beyond a GPU's cache


class Copier:
    def __init__(self, gpu):
        self.device = torch.device("cuda", gpu)
        torch.cuda.set_device(self.device)
        self.out = torch.cuda.Stream()
        self.into = torch.cuda.Stream()
        self.end = torch.cuda.Event()
        self.src = self.dst = None
        self.at = 0
        self.slots = []
        self.landed = []
        self.freed = []

    def prepare(self, n, chunk, slots):
        """Makes room for copies of n bytes in pieces of chunk. Not timed."""
        if self.src is None or n > self.src.numel():
            self.src = self.dst = None
            span = max(-(-ROTATE // n) * n, n)
            self.src = torch.randint(0, POISON, (span,), dtype=torch.uint8, device=self.device)
            self.dst = torch.empty_like(self.src)
            self.at = 0
        need = min(chunk, n)
        if len(self.slots) != slots or self.slots[0].numel() < need:
            self.slots = []
            self.slots = [torch.empty(need, dtype=torch.uint8, pin_memory=True) for _ in range(slots)]
            self.landed = [torch.cuda.Event() for _ in range(slots)]
            self.freed = [torch.cuda.Event() for _ in range(slots)]

    def ring(self, dst, src, chunk):
        n = src.numel()
        current = torch.cuda.current_stream()
        if n <= chunk:
            slot = self.slots[0][:n]
            slot.copy_(src, non_blocking=True)
            dst.copy_(slot, non_blocking=True)
            self.end.record(current)
            return dst
        self.out.wait_stream(current)
        self.into.wait_stream(current)
        for i, lo in enumerate(range(0, n, chunk)):
            at = i % len(self.slots)
            slot = self.slots[at][: min(chunk, n - lo)]
            with torch.cuda.stream(self.out):
                if i >= len(self.slots):
                    self.out.wait_event(self.freed[at])
                slot.copy_(src[lo : lo + chunk], non_blocking=True)
                self.landed[at].record(self.out)
            with torch.cuda.stream(self.into):
                self.into.wait_event(self.landed[at])
                dst[lo : lo + chunk].copy_(slot, non_blocking=True)
                self.freed[at].record(self.into)
        current.wait_stream(self.out)
        current.wait_stream(self.into)
        self.end.record(current)
        return dst

    def plain(self, dst, src, chunk):
        result = src.to("cpu").to(self.device)
        self.end.record(torch.cuda.current_stream())
        return result

    def run(self, method, n, chunk, slots, count):
        """Copies count times, each another part of the buffers, and counts the bytes that are wrong then."""
        self.prepare(n, chunk, slots)
        count = min(count, self.src.numel() // n)
        if self.at + count * n > self.src.numel():
            self.at = 0
        first, self.at = self.at, self.at + count * n
        copy = getattr(self, method)
        # Another program had the GPU and the processor before: the first copies pay for that.
        until = time.perf_counter() + WARM
        while True:
            copy(self.dst[first : first + n], self.src[first : first + n], chunk)
            torch.cuda.synchronize()
            if time.perf_counter() >= until:
                break
        self.dst[first : first + count * n].fill_(POISON)
        torch.cuda.synchronize()
        parts = [slice(first + i * n, first + (i + 1) * n) for i in range(count)]
        pairs = [(self.dst[p], self.src[p]) for p in parts]
        results, seconds, enqueue = [], [], []
        for dst, src in pairs:
            began = time.perf_counter()
            result = copy(dst, src, chunk)
            enqueued = time.perf_counter()
            while not self.end.query():
                pass
            done = time.perf_counter()
            results.append(result)
            seconds.append(done - began)
            enqueue.append(enqueued - began)
        wrong = sum(int((got != src).sum()) for got, (_, src) in zip(results, pairs))
        return {"seconds": seconds, "enqueue_seconds": enqueue, "wrong": wrong}


def say(line):
    print(json.dumps(line), flush=True)


def main():
    try:
        gpu = int(sys.argv[1]) if len(sys.argv) > 1 else 0
        copier = Copier(gpu)
        say(
            {
                "peer": "torch",
                "version": 1,
                "about": f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(gpu)}",
                "methods": [{"name": "ring", "tuned": True}, {"name": "plain", "unchunked": True}],
            }
        )
        for line in sys.stdin:
            words = line.split()
            if len(words) != 5 or words[0] not in ("ring", "plain") or not all(w.isdecimal() and int(w) > 0 for w in words[1:]):
                say({"error": "not a request: METHOD BYTES CHUNK SLOTS COUNT"})
                continue
            say(copier.run(words[0], *map(int, words[1:])))
    except Exception as e:
        say({"error": f"{type(e).__name__}: {e}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
