// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"slices"
	"strings"
	"sync"
)

// A gate stands before a GPU, for all groups of the process that use it.
//
// Kernels that wait for each other are launched one rank after another, and the
// first wait until the last has begun. What gets in between, on the streams of
// later ranks and behind those of earlier ones, keeps the last from beginning:
// another such launch of another group whose ranks come in another order, or a
// wait for an event behind an earlier rank's kernel. So who launches them passes
// the gates of his GPUs alone, and all else that waits across GPUs passes them
// together.
type gate struct {
	sync.RWMutex
	uuid  string
	users int // groups
}

var gates struct {
	sync.Mutex
	of []*gate
}

// needGates finds the gates of the group's GPUs, in an order that is the same for
// all groups.
func (g *Group) needGates() error {
	gates.Lock()
	defer gates.Unlock()
	for _, r := range g.ranks {
		id, err := r.device.UUID()
		if err != nil {
			return &Error{"open", r.index, err}
		}
		uuid := id.String()
		if slices.ContainsFunc(g.gates, func(t *gate) bool { return t.uuid == uuid }) {
			continue
		}
		i := slices.IndexFunc(gates.of, func(t *gate) bool { return t.uuid == uuid })
		if i < 0 {
			i = len(gates.of)
			gates.of = append(gates.of, &gate{uuid: uuid})
		}
		gates.of[i].users++
		g.gates = append(g.gates, gates.of[i])
	}
	slices.SortFunc(g.gates, func(a, b *gate) int { return strings.Compare(a.uuid, b.uuid) })
	return nil
}

// dropGates is for a group that closes.
func (g *Group) dropGates() {
	gates.Lock()
	defer gates.Unlock()
	for _, t := range g.gates {
		t.users--
	}
	gates.of = slices.DeleteFunc(gates.of, func(t *gate) bool { return t.users == 0 })
	g.gates = nil
}

// pass goes through the gates, alone or together with others. The group's lock is
// held.
func (g *Group) pass(alone bool) {
	for _, t := range g.gates {
		if alone {
			t.Lock()
		} else {
			t.RLock()
		}
	}
}

// passed is the end of what pass began.
func (g *Group) passed(alone bool) {
	for _, t := range g.gates {
		if alone {
			t.Unlock()
		} else {
			t.RUnlock()
		}
	}
}
