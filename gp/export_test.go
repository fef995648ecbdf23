// SPDX-License-Identifier: Apache-2.0

package gp

// SetEpoch sets the number of the group's latest exchange, which an exchange must
// have made before. Numbers only rise.
func (g *Group) SetEpoch(e uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.exchanges.epoch = e
}

// Epoch is that number.
func (g *Group) Epoch() uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.exchanges.epoch
}

// SetGrid makes all kernels that wait for each other have so many blocks, but for
// the handshake's; 0 leaves it to their shape.
func (g *Group) SetGrid(blocks uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.exchanges.grid = blocks
}

// Joining is how many ranks' goroutines wait for the others'.
func (g *Group) Joining() int {
	j := &g.joins
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.round == nil {
		return 0
	}
	return j.round.count
}
