// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/gp"
)

func le32(words ...uint32) (b []byte) {
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func le16(words ...uint16) (b []byte) {
	for _, w := range words {
		b = binary.LittleEndian.AppendUint16(b, w)
	}
	return b
}

func f32(vs ...float32) (b []byte) {
	for _, v := range vs {
		b = append(b, le32(math.Float32bits(v))...)
	}
	return b
}

func TestReduced(t *testing.T) {
	minusOne, least := uint32(0xffffffff), uint32(1<<31)
	for _, c := range []struct {
		t     gp.Type
		op    gp.Op
		ranks [][]byte
		want  []byte
	}{
		{gp.TypeFloat32, gp.Sum, [][]byte{f32(1, -5), f32(2, 5), f32(3, 7)}, f32(6, 7)},
		{gp.TypeFloat32, gp.Avg, [][]byte{f32(1, -5), f32(2, 5), f32(7, 1)}, f32(10/float32(3), 1/float32(3))},
		// 128 + 129 = 257 lies between the bfloat16s 256 and 258: to the even one,
		// 256. 128 + 131 = 259, between 258 and 260: 260. -1 + 1 = +0.
		{gp.TypeBFloat16, gp.Sum,
			[][]byte{le16(0x4300, 0x4300, 0xbf80), le16(0x4301, 0x4303, 0x3f80)}, le16(0x4380, 0x4382, 0)},
		{gp.TypeInt32, gp.Max, [][]byte{le32(1, minusOne, least), le32(0, least, least)}, le32(1, minusOne, least)},
	} {
		got, err := reduced(c.ranks, c.t, c.op)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%v of %v", c.op, c.t)
	}
	_, err := reduced([][]byte{{0}}, gp.TypeUint8, gp.Prod)
	require.ErrorContains(t, err, "no reference")
}

// The check is exact only if no order of additions rounds.
func TestFloatDataIsExactInAnyOrder(t *testing.T) {
	const n = 500
	var r splitmix
	shuffle := rand.New(rand.NewPCG(1, 2))
	data := make([][]byte, gp.MaxRanks)
	for i := range data {
		data[i] = make([]byte, 4*n)
		randomElems(data[i], gp.TypeFloat32, &r)
	}
	want, err := reduced(data, gp.TypeFloat32, gp.Sum)
	require.NoError(t, err)
	for range 20 {
		shuffle.Shuffle(len(data), func(i, j int) { data[i], data[j] = data[j], data[i] })
		got := make([]byte, 4*n)
		for e := 0; e < len(got); e += 4 {
			var sum float32
			for _, b := range data {
				sum += math.Float32frombits(binary.LittleEndian.Uint32(b[e:]))
			}
			binary.LittleEndian.PutUint32(got[e:], math.Float32bits(sum))
		}
		require.Equal(t, want, got)
	}
	require.LessOrEqual(t, limitFloat32*gp.MaxRanks, 1<<24)
	require.LessOrEqual(t, limitBFloat16, 1<<8)
}

func TestRandomBytesFillsOddLengths(t *testing.T) {
	var g splitmix
	for n := range 40 {
		b := make([]byte, n)
		var seen [40]byte
		for range 8 { // a byte that is never written stays 0
			randomBytes(b, &g)
			for i, v := range b {
				seen[i] |= v
			}
		}
		for i := range n {
			require.NotZero(t, seen[i], "byte %d of %d", i, n)
		}
	}
	a, b := make([]byte, 99), make([]byte, 99)
	r, s := splitmix(7), splitmix(7)
	randomBytes(a, &r)
	randomBytes(b, &s)
	require.Equal(t, a, b, "one seed, one sequence")
}

func TestComplementAndFirstDifference(t *testing.T) {
	want := []byte{0, 1, 0x5a, 0xff, 2, 3, 4, 5, 6, 7, 8}
	got := make([]byte, len(want))
	complement(got, want)
	at, count := firstDifference(got, want)
	require.Equal(t, 0, at)
	require.Equal(t, len(want), count)
	copy(got, want)
	at, count = firstDifference(got, want)
	require.Equal(t, -1, at)
	require.Zero(t, count)
	got[2] ^= 1
	at, count = firstDifference(got, want)
	require.Equal(t, 2, at)
	require.Equal(t, 1, count)
}
