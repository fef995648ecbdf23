// SPDX-License-Identifier: Apache-2.0

package main

const intro = `# Modelled

<!-- written by go run ./bench/modelled, not by hand -->

Every figure of this page that is not called published comes from the simulator (docs/simulator.md): it is a model's, and no
result. What was measured is in docs/measured, and nothing of this page goes there. GB/s is 1e9 bytes a second.

No host with GeForce cards has been measured with this library. What the model does not know of such a host is drawn from what others have
seen, and every figure is a range over it, the worse end first:

- what a link carries both ways at once: 0.6, 0.8 or 1.0 of the sum of both one-way rates. Hosts differ most in this: published are
  0.78 and 0.8 on hosts with EPYC processors and PCIe 4.0 cards and 0.9 beside RTX 5090, and one H200 had 0.92;
- what DMA reaches of the peak of a NUMA node's memory: 60 or 80%.

`

const conditions = `
What would have to be true for the better end: links that carry both ways at full rate, memory that gives DMA four fifths of its peak, and
driver calls and small copies that cost no more than on the H200 host from which the model has them. With eight ranks and one thread that
enqueues for all, the calls are most of the time up to about 1 MiB, so that a slower processor moves those rows and the variants do not.
Below some MiB the model has NCCL ahead on this machine.

What would make it the worse end, or worse: copies from a GPU that starve those to it (the model lets both lose alike; NVIDIA/nvbandwidth#15 has
11.2 to 16 GB/s to RTX 4090 cards while bytes come from them, of 24 to 26 alone), a host that gives DMA less than three fifths of its memory's peak, or one
that does not let pinned memory be put on each GPU's node. Copies that wait for each other across streams took 4.5 us each on the H200,
measured in collectives; the machines of the simulator have 2 us, from copies back to back, and 2.4 us for a wait. Kernels that
wait for each other are modelled without what their polls take of the link.

NCCL's figures are of its own process with a thread a GPU and of a buffer that is not reduced in place. They are shown because they are
what a user of that machine has today; a comparison needs both on one machine.

`

const copyNotes = `
The better end needs links that carry both ways at full rate; one way, the variants hardly matter, for each link carries one
direction only. The worse end of both ways is a link at 0.6 of the sum.
`
