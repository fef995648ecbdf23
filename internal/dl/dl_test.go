// SPDX-License-Identifier: Apache-2.0

package dl_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dl"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// Each mixN weighs its arguments by position, so that a swapped or dropped one
// shows.
const source = `
#include <stdint.h>
#include <stddef.h>
typedef uint64_t u;
u mix0(void) { return 7; }
u mix1(u a) { return a; }
u mix2(u a, u b) { return a+2*b; }
u mix3(u a, u b, u c) { return a+2*b+3*c; }
u mix4(u a, u b, u c, u d) { return a+2*b+3*c+4*d; }
u mix5(u a, u b, u c, u d, u e) { return a+2*b+3*c+4*d+5*e; }
u mix6(u a, u b, u c, u d, u e, u f) { return a+2*b+3*c+4*d+5*e+6*f; }
u mix7(u a, u b, u c, u d, u e, u f, u g) { return a+2*b+3*c+4*d+5*e+6*f+7*g; }
u mix8(u a, u b, u c, u d, u e, u f, u g, u h) { return a+2*b+3*c+4*d+5*e+6*f+7*g+8*h; }
u mix9(u a, u b, u c, u d, u e, u f, u g, u h, u i) { return a+2*b+3*c+4*d+5*e+6*f+7*g+8*h+9*i; }
u mix10(u a, u b, u c, u d, u e, u f, u g, u h, u i, u j) { return a+2*b+3*c+4*d+5*e+6*f+7*g+8*h+9*i+10*j; }
u mix11(u a, u b, u c, u d, u e, u f, u g, u h, u i, u j, u k) { return a+2*b+3*c+4*d+5*e+6*f+7*g+8*h+9*i+10*j+11*k; }
int minus_one(void) { return -1; }
const char *words(void) { return "out of cheese"; }
void store(u *p, u v) { *p = v; }
`

func open(t testing.TB) *dl.Library {
	t.Helper()
	path := testenv.CompileC(t, source, "libmix.so")
	lib, err := dl.Open("the test library", filepath.Join(t.TempDir(), "absent.so"), path)
	require.NoError(t, err)
	require.Equal(t, path, lib.Name())
	return lib
}

func lookup(t testing.TB, lib *dl.Library, symbol string) dl.Proc {
	t.Helper()
	p, err := lib.Lookup(symbol)
	require.NoError(t, err)
	return p
}

func TestCallPassesEachArgumentInItsPlace(t *testing.T) {
	lib := open(t)
	const big = 1 << (31 + 9*(^uint(0)>>63)) // 1<<40 where a word has 64 bits: shows a narrowing to 32
	a := [11]uintptr{big + 1, 17, 3, big + 5, 29, 2, 91, 4, 77, big + 6, 13}
	var own dl.Args
	pooled := []func(p dl.Proc) uintptr{
		func(p dl.Proc) uintptr { return dl.Call0(p) },
		func(p dl.Proc) uintptr { return dl.Call1(p, a[0]) },
		func(p dl.Proc) uintptr { return dl.Call2(p, a[0], a[1]) },
		func(p dl.Proc) uintptr { return dl.Call3(p, a[0], a[1], a[2]) },
		func(p dl.Proc) uintptr { return dl.Call4(p, a[0], a[1], a[2], a[3]) },
		func(p dl.Proc) uintptr { return dl.Call5(p, a[0], a[1], a[2], a[3], a[4]) },
		func(p dl.Proc) uintptr { return dl.Call6(p, a[0], a[1], a[2], a[3], a[4], a[5]) },
		func(p dl.Proc) uintptr { return dl.Call7(p, a[0], a[1], a[2], a[3], a[4], a[5], a[6]) },
		func(p dl.Proc) uintptr { return dl.Call8(p, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]) },
		func(p dl.Proc) uintptr { return dl.Call9(p, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]) },
		func(p dl.Proc) uintptr {
			return dl.Call10(p, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9])
		},
		func(p dl.Proc) uintptr {
			return dl.Call11(p, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10])
		},
	}
	listed := []func(p dl.Proc) uintptr{
		func(p dl.Proc) uintptr { return dl.Call0(p) }, // needs no list
		func(p dl.Proc) uintptr { return own.Call1(p, a[0]) },
		func(p dl.Proc) uintptr { return own.Call2(p, a[0], a[1]) },
		func(p dl.Proc) uintptr { return own.Call3(p, a[0], a[1], a[2]) },
		func(p dl.Proc) uintptr { return own.Call4(p, a[0], a[1], a[2], a[3]) },
		func(p dl.Proc) uintptr { return own.Call5(p, a[0], a[1], a[2], a[3], a[4]) },
		func(p dl.Proc) uintptr { return own.Call6(p, a[0], a[1], a[2], a[3], a[4], a[5]) },
		func(p dl.Proc) uintptr { return own.Call7(p, a[0], a[1], a[2], a[3], a[4], a[5], a[6]) },
		func(p dl.Proc) uintptr { return own.Call8(p, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]) },
		func(p dl.Proc) uintptr { return own.Call9(p, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]) },
		func(p dl.Proc) uintptr {
			return own.Call10(p, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9])
		},
		func(p dl.Proc) uintptr {
			return own.Call11(p, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10])
		},
	}
	for n := range pooled {
		want := uintptr(7)
		if n > 0 {
			want = 0
		}
		for i := range n {
			want += uintptr(i+1) * a[i]
		}
		p := lookup(t, lib, fmt.Sprintf("mix%d", n))
		require.Equal(t, want, pooled[n](p), "mix%d", n)
		require.Equal(t, want, listed[n](p), "mix%d", n)
	}
	require.Equal(t, int32(-1), int32(dl.Call0(lookup(t, lib, "minus_one"))))
}

func TestGoString(t *testing.T) {
	require.Equal(t, "", dl.GoString(0))
	lib := open(t)
	require.Equal(t, "out of cheese", dl.GoString(dl.Call0(lookup(t, lib, "words"))))
}

//go:noinline
func deep(n int) byte {
	var pad [512]byte
	if n == 0 {
		return pad[3]
	}
	pad[n%512] = byte(n)
	return deep(n-1) + pad[n%512]
}

// The stack of each new goroutine is small and grows somewhere on the way into
// the call; a result on it must still be found.
func TestResultsSurviveStackGrowth(t *testing.T) {
	lib := open(t)
	store := lookup(t, lib, "store")
	var wg sync.WaitGroup
	var wrong [200]uint64
	for i := range wrong {
		wg.Go(func() {
			var v uint64
			deep(i % 40)
			dl.Call2(store, uintptr(unsafe.Pointer(&v)), uintptr(i)+1)
			deep(i)
			wrong[i] = v ^ (uint64(i) + 1)
		})
	}
	wg.Wait()
	require.Equal(t, [200]uint64{}, wrong)
}

func TestFileIsWhatWasLoaded(t *testing.T) {
	path := testenv.CompileC(t, source, "libmix.so")
	link := filepath.Join(t.TempDir(), "link to lib.so")
	require.NoError(t, os.Symlink(path, link))
	lib, err := dl.Open("the test library", link)
	require.NoError(t, err)
	want, err := filepath.EvalSymlinks(path)
	require.NoError(t, err)
	got, err := filepath.EvalSymlinks(lib.File("mix1"))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, link, lib.File("no_such_symbol"), "the name where the file cannot be known")
}

func TestMissingSymbolIsNamed(t *testing.T) {
	lib := open(t)
	p, err := lib.Lookup("cuNoSuchSymbol")
	require.ErrorContains(t, err, "cuNoSuchSymbol")
	require.Zero(t, p)
}

func TestOpenErrorListsEverythingTried(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.so")
	require.NoError(t, os.WriteFile(broken, []byte("not a library"), 0o600))
	absent := filepath.Join(dir, "absent.so")

	_, err := dl.Open("the thing", "libno-such-thing.so.9", absent)
	var e *dl.OpenError
	require.ErrorAs(t, err, &e)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no libraries on this target")
	}
	require.Len(t, e.Tried, 2)
	require.True(t, e.Absent())
	require.Contains(t, err.Error(), "cannot load the thing")
	for _, name := range []string{"libno-such-thing.so.9", absent} {
		require.Contains(t, err.Error(), name)
	}

	_, err = dl.Open("the thing", absent, broken)
	require.ErrorAs(t, err, &e)
	require.False(t, e.Absent(), "a file that is there and does not load is not absent")
	require.Equal(t, 1, strings.Count(err.Error(), broken), "%v", err)
}

// dlerror belongs to the OS thread: each error must be about its own library.
func TestConcurrentErrorsAreNotMixedUp(t *testing.T) {
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 50 {
				name := fmt.Sprintf("libabsent-%d-%d.so", g, i)
				_, err := dl.OpenOne(name)
				if err == nil {
					t.Errorf("%s loaded", name)
				} else if !errors.Is(err, errors.ErrUnsupported) && !strings.Contains(err.Error(), name) {
					t.Errorf("%s: got %q", name, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestCallsDoNotAllocate(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	lib := open(t)
	mix1, mix11, store := lookup(t, lib, "mix1"), lookup(t, lib, "mix11"), lookup(t, lib, "store")
	out := new(uint64)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		dl.Call1(mix1, 1)
		dl.Call11(mix11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
		dl.Call2(store, uintptr(unsafe.Pointer(out)), 5)
	}))
	require.Equal(t, uint64(5), *out)
}

func BenchmarkCall1(b *testing.B) {
	p := lookup(b, open(b), "mix1")
	b.ReportAllocs()
	for b.Loop() {
		dl.Call1(p, 1)
	}
}

func BenchmarkCall11(b *testing.B) {
	p := lookup(b, open(b), "mix11")
	b.ReportAllocs()
	for b.Loop() {
		dl.Call11(p, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	}
}
