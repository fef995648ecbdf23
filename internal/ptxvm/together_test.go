// SPDX-License-Identifier: Apache-2.0

package ptxvm

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
)

// sender has a thread of the first warp store data at 8 and one of the second
// post a flag at 0; receiver has one thread wait for the flag and another store
// what it then finds at 8 to 16, and says so at 24, before which the sender does
// not end: the end of a block brings all that it stored.
const (
	sender = "mov.u32 %r1, %tid.x;\nsetp.ne.s32 %p1, %r1, 3;\nsetp.ne.s32 %p2, %r1, 40;\nmov.b64 %rd2, 7;\nmov.b64 %rd3, 1;\n" +
		"@%p1 bra A;\nst.global.u64 [%rd1+8], %rd2;\nA:\nbar.sync 0;\n@%p2 bra B;\nst.release.sys.global.u64 [%rd1], %rd3;\nB:\n" +
		"mov.u64 %rd5, %globaltimer;\nld.volatile.global.u64 %rd4, [%rd1+24];\nsetp.eq.s64 %p3, %rd4, 0;\n@%p3 bra B;"
	receiver = "mov.u32 %r1, %tid.x;\nsetp.ne.s32 %p1, %r1, 5;\nsetp.ne.s32 %p2, %r1, 50;\n" +
		"@%p1 bra B;\nA:\nmov.u64 %rd4, %globaltimer;\nld.acquire.sys.global.u64 %rd3, [%rd1];\nsetp.eq.s64 %p3, %rd3, 0;\n@%p3 bra A;\nB:\nbar.sync 0;\n" +
		"@%p2 bra C;\nld.global.u64 %rd2, [%rd1+8];\nst.global.u64 [%rd1+16], %rd2;\nst.volatile.global.u64 [%rd1+24], %rd1;\nC:"
)

func edited(t *testing.T, body, from, to string) *Program {
	t.Helper()
	require.Contains(t, body, from)
	if from != "" {
		body = strings.Replace(body, from, to, 1)
	}
	p, err := program(t, body)
	require.NoError(t, err)
	return p
}

// Data arrives by a release and an acquire with a barrier on both sides, and
// without any one of the four it does not, whatever the turns.
func TestWeakMemory(t *testing.T) {
	for _, c := range []struct {
		what     string
		inSender bool
		from, to string
		want     uint64
		endless  bool
	}{
		{what: "all of them", want: 7},
		{what: "no release", inSender: true, from: "st.release", to: "st.relaxed"},
		{what: "no release but a fence", inSender: true, from: "st.release", to: "fence.acq_rel.sys;\nst.relaxed", want: 7},
		{what: "a fence of the GPU alone", inSender: true, from: "st.release", to: "fence.acq_rel.gpu;\nst.relaxed"},
		{what: "no barrier in front of the release", inSender: true, from: "bar.sync 0;", to: ""},
		{what: "no acquire", from: "ld.acquire", to: "ld.relaxed"},
		{what: "no acquire but a fence", from: "ld.acquire.sys.global.u64 %rd3, [%rd1];", to: "ld.relaxed.sys.global.u64 %rd3, [%rd1];\nmembar.sys;", want: 7},
		{what: "no barrier behind the acquire", from: "bar.sync 0;", to: ""},
		{what: "a flag that is read plainly", from: "ld.acquire.sys.global", to: "ld.global", endless: true},
	} {
		for seed := range uint64(8) {
			s, r := edited(t, sender, "", ""), edited(t, receiver, "", "")
			if c.inSender {
				s = edited(t, sender, c.from, c.to)
			} else {
				r = edited(t, receiver, c.from, c.to)
			}
			m := memory{b: make([]byte, 32)}
			_, err := Together(rand.New(rand.NewPCG(seed, 1)), m, 100_000, launchOf(s, 1, 64), launchOf(r, 1, 64))
			if c.endless {
				require.ErrorIs(t, err, ErrEndless, c.what)
				continue
			}
			require.NoError(t, err, c.what)
			require.Equal(t, uint64(7), binary.LittleEndian.Uint64(m.b[8:]), "at the end")
			require.Equal(t, c.want, binary.LittleEndian.Uint64(m.b[16:]), "%s, seed %d", c.what, seed)
		}
	}
}

// Two words that are stored together are seen apart, and neither is seen in part.
func TestTornWords(t *testing.T) {
	s, err := program(t, "mov.b64 %rd2, -1;\nst.volatile.global.v2.u64 [%rd1], {%rd2, %rd2};")
	require.NoError(t, err)
	// Waits for any word, and stores what both were then at 16.
	r, err := program(t, "A:\nmov.u64 %rd5, %globaltimer;\nld.volatile.global.v2.u64 {%rd2, %rd3}, [%rd1];\nor.b64 %rd4, %rd2, %rd3;\nsetp.eq.s64 %p1, %rd4, 0;\n@%p1 bra A;\n"+
		"st.global.v2.u64 [%rd1+16], {%rd2, %rd3};")
	require.NoError(t, err)
	seen := map[string]int{}
	for seed := range uint64(200) {
		m := memory{b: make([]byte, 32)}
		_, err := Together(rand.New(rand.NewPCG(seed, 2)), m, 1_000_000, launchOf(s, 1, 1), launchOf(r, 1, 1))
		require.NoError(t, err)
		seen[fmt.Sprintf("%x", m.b[16:])]++
	}
	ones, zeros := "ffffffffffffffff", "0000000000000000"
	require.NotZero(t, seen[ones+zeros], "%v", seen)
	for k := range seen {
		require.Contains(t, []string{ones + zeros, zeros + ones, ones + ones}, k)
	}
}

// Threads that do not meet where they have to.
func TestMeeting(t *testing.T) {
	for body, says := range map[string]string{
		"mov.u32 %r1, %tid.x;\nsetp.eq.s32 %p1, %r1, 9;\n@%p1 bra L;\nbar.sync 0;\nL:":                    "ends",
		"mov.u32 %r1, %tid.x;\nsetp.eq.s32 %p1, %r1, 9;\n@%p1 bra L;\nbar.sync 0;\nret;\nL:\nbar.sync 0;": "waits at line",
	} {
		p, err := program(t, body)
		require.NoError(t, err)
		m := memory{b: make([]byte, 8)}
		_, err = Run(launchOf(p, 2, 64), m)
		require.ErrorIs(t, err, ErrMeeting)
		require.ErrorContains(t, err, says)
		_, err = Together(rand.New(rand.NewPCG(1, 3)), m, 1_000_000, launchOf(p, 1, 64))
		require.ErrorIs(t, err, ErrMeeting)
		require.ErrorContains(t, err, "k, launch 0")
	}
	p, err := program(t, "ret;")
	require.NoError(t, err)
	l := launchOf(p, 1, 1)
	l.Params = nil
	_, err = Run(l, memory{})
	require.ErrorIs(t, err, ErrLaunch)
	_, err = Run(launchOf(p, 1, 1025), memory{})
	require.ErrorIs(t, err, ErrLaunch)
}

// waiting says at 8 that it has begun, waits for the word at 0 for 1 ms, and
// says at 16 how it ended: 1, or 2 if it waited in vain.
const waiting = "mov.b64 %rd2, 1;\nst.global.u64 [%rd1+8], %rd2;\nmov.u64 %rd5, %globaltimer;\nA:\nmov.u64 %rd6, %globaltimer;\nsub.s64 %rd6, %rd6, %rd5;\n" +
	"setp.ge.u64 %p2, %rd6, 1000000;\n@%p2 mov.b64 %rd2, 2;\n@%p2 bra B;\nld.volatile.global.u64 %rd4, [%rd1];\nsetp.eq.s64 %p1, %rd4, 0;\n@%p1 bra A;\nB:\nst.global.u64 [%rd1+16], %rd2;"

// A member goes as far as it can, does nothing while there is nothing to do, and
// ends when what it waits for is there, or gives up.
func TestMember(t *testing.T) {
	p, err := program(t, waiting)
	require.NoError(t, err)
	for _, comes := range []bool{true, false} {
		m := memory{b: make([]byte, 24)}
		var k kernel.Coop = NewMember(launchOf(p, 2, 32), 1_000_000)
		done, moved, err := k.Step(m)
		require.NoError(t, err)
		require.False(t, done)
		require.True(t, moved)
		require.Equal(t, byte(1), m.b[8])
		for range 3 {
			done, moved, err = k.Step(m)
			require.NoError(t, err)
			require.False(t, done || moved)
		}
		want := byte(2)
		if comes {
			m.b[0], want = 1, 1
			done, moved, err = k.Step(m)
			require.NoError(t, err)
			require.True(t, done && moved)
		} else {
			require.NoError(t, k.GiveUp(m, kernel.StatusTimedOut))
		}
		require.Equal(t, want, m.b[16])
		done, _, err = k.Step(m)
		require.NoError(t, err)
		require.True(t, done)
	}
	// What waits for ever does not give up either.
	p, err = program(t, "A:\nmov.u64 %rd6, %globaltimer;\nbra A;")
	require.NoError(t, err)
	k := NewMember(launchOf(p, 1, 1), 1000)
	require.ErrorIs(t, k.GiveUp(memory{}, kernel.StatusTimedOut), ErrEndless)
}
