// SPDX-License-Identifier: Apache-2.0

package probe

// State is what a pair's direction is, in one word.
type State string

// The states.
const (
	StateSame    State = "same"    // one GPU
	StateOn      State = "on"      // granted; see PairReport.Verified
	StateRisk    State = "granted" // granted, with something in the way of right data
	StateBad     State = "broken"  // granted, and a checked transfer failed
	StateOff     State = "off"     // refused
	StateUnknown State = "unknown" // CUDA could not be asked
)

// Status is what the diagnosis of a machine came to.
type Status string

// The statuses.
const (
	StatusJudged   Status = "judged"
	StatusLost     Status = "gpu-lost"        // a GPU is lost; the others were judged
	StatusUnusable Status = "driver-unusable" // CUDA could not be asked, or there is no GPU
)

// Evidence is one observation behind a finding.
type Evidence struct {
	Text    string `json:"text"`
	Source  string `json:"source,omitzero"`
	Assumed bool   `json:"assumed,omitzero"`
}

// Finding is a cause that was found, with its evidence. Do is the cause's, or
// more specific.
type Finding struct {
	Cause    CauseID    `json:"cause"`
	Kind     Kind       `json:"kind"`
	Patch    Patch      `json:"patch"`
	Evidence []Evidence `json:"evidence,omitempty"`
	Do       string     `json:"do,omitzero"`
}

// Missing is a signal that a judgement wanted and that could not be read.
type Missing struct {
	Signal string `json:"signal"`
	Why    string `json:"why"`
	Count  int    `json:"count"` // devices, or directions of pairs, that lack it
}

// DeviceReport is a GPU and what was found about it alone.
type DeviceReport struct {
	Device   int       `json:"device"` // as in Facts.Devices, from 0
	Label    string    `json:"label"`  // "GPU0"
	BusID    string    `json:"bus_id,omitzero"`
	Name     string    `json:"name,omitzero"`
	Chip     string    `json:"chip,omitzero"`
	CUDA     *int      `json:"cuda_ordinal,omitempty"`
	NVML     *int      `json:"nvml_index,omitempty"`
	Memory   uint64    `json:"memory_bytes,omitzero"`
	BAR1     uint64    `json:"bar1_bytes,omitzero"`
	Link     LinkRate  `json:"link,omitzero"`
	NUMA     *int      `json:"numa_node,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
}

// PairReport is one direction of a pair: From accesses the memory of To.
type PairReport struct {
	From     int   `json:"from"`
	To       int   `json:"to"`
	State    State `json:"state"`
	Verified bool  `json:"verified"` // a checked transfer passed
	// CanAccess is CUDA's word, nil where it could not be asked; Read and Write
	// are NVML's, "" where it could not be asked.
	CanAccess *bool     `json:"can_access"`
	Read      P2PStatus `json:"nvml_read,omitzero"`
	Write     P2PStatus `json:"nvml_write,omitzero"`
	// Headline is the first cause, and Findings are all of them, in the order of
	// the table.
	Headline CauseID   `json:"headline"`
	Verdict  string    `json:"verdict"` // for people
	Patch    Patch     `json:"patch"`
	PatchWhy string    `json:"patch_why,omitzero"`
	Findings []Finding `json:"findings,omitempty"`
	Unknown  []string  `json:"unknown,omitempty"` // signals that were wanted and not read
	Transfer *Transfer `json:"transfer,omitempty"`
}

// Has tells whether a cause was found.
func (p *PairReport) Has(c CauseID) bool { return has(p.Findings, c) }

func has(list []Finding, c CauseID) bool {
	for _, f := range list {
		if f.Cause == c {
			return true
		}
	}
	return false
}

// Report is what Diagnose makes of facts.
type Report struct {
	Schema  int            `json:"schema"`
	Status  Status         `json:"status"`
	Note    string         `json:"note,omitzero"`
	Taken   string         `json:"taken,omitzero"`
	Driver  string         `json:"driver"` // in short, for people
	CUDA    string         `json:"cuda"`
	NVML    string         `json:"nvml"`
	Machine []Finding      `json:"machine,omitempty"` // of the machine as a whole
	Devices []DeviceReport `json:"devices"`
	Pairs   []PairReport   `json:"pairs"`
	// Causes are the rows of the table that were found anywhere.
	Causes  []Cause   `json:"causes"`
	Unknown []Missing `json:"unknown,omitempty"`
	// Topology[i][j] is what lies between two GPUs, as nvidia-smi topo -m has it:
	// "X", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS", or "?".
	Topology [][]string `json:"topology"`
	// Branch is nil where no pair has a use for the patch.
	Branch *Advice `json:"branch,omitempty"`
}

// Pair returns a direction's report, nil if there is no such pair.
func (r *Report) Pair(from, to int) *PairReport {
	n := len(r.Devices)
	if from < 0 || to < 0 || from >= n || to >= n || from == to {
		return nil
	}
	at := from*(n-1) + to // row by row without the diagonal
	if to > from {
		at--
	}
	return &r.Pairs[at]
}

// LinkRate is the link that bounds a GPU's transfers: the lower of the card's
// maximum and that of the port above it, each way.
type LinkRate struct {
	Gen            int     `json:"gen,omitzero"`
	Width          int     `json:"width,omitzero"`
	BytesPerSecond float64 `json:"bytes_per_second,omitzero"`
}

// laneRates are bytes a second of one lane in one direction, after line coding,
// by generation. Packet headers come off that.
var laneRates = [...]float64{0, 250e6, 500e6, 8e9 * 128 / 130 / 8, 16e9 * 128 / 130 / 8, 32e9 * 128 / 130 / 8, 64e9 * 242 / 256 / 8, 128e9 * 242 / 256 / 8}

func rateOf(gen, width int) LinkRate {
	if gen <= 0 || gen >= len(laneRates) || width <= 0 || width > 32 {
		return LinkRate{}
	}
	return LinkRate{Gen: gen, Width: width, BytesPerSecond: laneRates[gen] * float64(width)}
}
