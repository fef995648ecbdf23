// SPDX-License-Identifier: Apache-2.0

package main

import "encoding/json"

// version is of the document. Fields are added within a version, never renamed.
const version = 1

// A document is one run on one machine. GB/s is 1e9 bytes a second; a ratio over
// something is its time over the library's, so that more than 1 is faster than
// it; a ratio of a bound is the bound's time over the library's, at most 1.
type document struct {
	Version     int             `json:"version"`
	Date        string          `json:"date"`
	Command     string          `json:"command"`
	Machine     json.RawMessage `json:"machine"` // as gp bench tells it; null: nothing ran
	GPUs        int             `json:"gpus"`
	Modelled    bool            `json:"modelled"`
	Seconds     float64         `json:"seconds"` // that the run took
	Goals       []goal          `json:"goals"`
	Links       []benchResult   `json:"links"` // ceilings: of each GPU, and of all at once
	Copies      []copyRow       `json:"copies"`
	Collectives []collectiveRow `json:"collectives"`
	Children    []childReport   `json:"children"`
	Notes       []string        `json:"notes"`
	// As they came: the documents of gp bench by child, but for modelled ones, and what
	// NCCL's programs said.
	Bench map[string]json.RawMessage `json:"bench"`
	Peers []peerRun                  `json:"peers"`

	docs map[string]*benchDoc
}

// A childReport is how a child ended.
type childReport struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	Env     []string `json:"environment"`
	Seconds float64  `json:"seconds"`
	Failed  string   `json:"failed,omitempty"`
	Skipped string   `json:"skipped,omitempty"`
}

// A benchDoc is what of a document of gp bench is read here.
type benchDoc struct {
	Machine json.RawMessage `json:"machine"`
	Results []benchResult   `json:"results"`
	Skipped []any           `json:"skipped"`
	Error   string          `json:"error"`
}

// A benchResult is what of its results is.
type benchResult struct {
	Op        string   `json:"op"`
	Algorithm string   `json:"algorithm"`
	Ranks     int      `json:"ranks"`
	Bytes     uint64   `json:"bytes"`
	Seconds   float64  `json:"seconds"`
	P5        float64  `json:"p5_seconds"`
	P95       float64  `json:"p95_seconds"`
	Count     int      `json:"count"`
	Algbw     float64  `json:"algbw_gb_per_s"`
	Busbw     float64  `json:"busbw_gb_per_s"`
	Wrong     uint64   `json:"wrong"`
	Case      string   `json:"case"`
	GPUs      string   `json:"gpus"`
	Ceiling   *float64 `json:"ceiling_gb_per_s,omitempty"`
	Ratio     *float64 `json:"ratio_to_ceiling,omitempty"`
	InPlace   *bool    `json:"in_place,omitempty"`
	Asked     *string  `json:"asked,omitempty"`
	Event     *float64 `json:"event_seconds,omitempty"`
}

// A timing is one way to do an operation.
type timing struct {
	Seconds float64  `json:"seconds"`                 // from the call to done
	Event   *float64 `json:"event_seconds,omitempty"` // by the GPUs' events
	Train   float64  `json:"train_seconds,omitempty"` // a call of a train
	Ratio   *float64 `json:"of_bound,omitempty"`
}

// A copyRow is a copy between two GPUs, one way or both ways at once, by each
// route. NCCL's is ncclSend and ncclRecv.
type copyRow struct {
	Ways       int                `json:"ways"`
	Bytes      uint64             `json:"bytes"` // of one way
	Routes     map[string]timing  `json:"routes"`
	NCCL       map[string]timing  `json:"nccl,omitempty"`
	OverDriver *float64           `json:"over_driver,omitempty"` // staged over the driver's own staging
	OverNCCL   map[string]float64 `json:"over_nccl,omitempty"`
}

// A collectiveRow is an operation at a size, out of place.
type collectiveRow struct {
	Op     string   `json:"op"`
	Ranks  int      `json:"ranks"`
	Bytes  uint64   `json:"bytes"`
	Chosen string   `json:"chosen"`             // the library's choice with P2P denied
	Ours   *timing  `json:"ours"`               // with that
	Bound  *float64 `json:"of_bound,omitempty"` // ours of bare traffic: the fewest bytes that each link must carry, in the same rounds
	// By the name of the algorithm; peer is with P2P, for context.
	Algorithms map[string]timing `json:"algorithms"`
	// By child, and of those with protocols "child/protocol". nccl.nvlink is with P2P,
	// for context.
	NCCL map[string]timing `json:"nccl,omitempty"`
	// Best is the fastest of NCCL's over shared memory, from the call to done.
	Best string `json:"nccl_best,omitempty"`
	// Ours over NCCL over shared memory.
	OverNCCL     *ratios `json:"over_nccl,omitempty"`        // as it is by default
	OverCopies   *ratios `json:"over_nccl_copies,omitempty"` // with copies by DMA
	OverBest     *ratios `json:"over_nccl_best,omitempty"`
	OverPerGPU   *ratios `json:"over_nccl_process_a_gpu,omitempty"` // through PyTorch
	OverNVLink   *ratios `json:"over_nccl_nvlink,omitempty"`        // context
	PeerOverNCCL *ratios `json:"peer_over_nccl_nvlink,omitempty"`   // context: ours with P2P
}

// ratios are by each clock that both have.
type ratios struct {
	Call  float64  `json:"call"`            // from the call to done
	Event *float64 `json:"event,omitempty"` // by the GPUs' events
}

// A goal is what the run is to reach.
type goal struct {
	Name   string   `json:"name"`
	Wanted float64  `json:"wanted"`
	Got    *float64 `json:"got"` // the worst of the sizes; null: not measured
	At     string   `json:"at,omitempty"`
	Met    bool     `json:"met"`
	Aim    bool     `json:"aim"` // reported, not required
}
