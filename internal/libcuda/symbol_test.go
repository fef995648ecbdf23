// SPDX-License-Identifier: Apache-2.0

package libcuda_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda"
	"github.com/geforce-p2p/geforce-p2p/internal/libcuda/fakelib"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// driverMethods are the methods of the seam that are driver calls.
func driverMethods() []string {
	var names []string
	seam := reflect.TypeFor[api.Driver]()
	for i := range seam.NumMethod() {
		if name := seam.Method(i).Name; name != "Host" {
			names = append(names, name)
		}
	}
	return names
}

// symbolComment is what api.go says about a method's symbol: a suffix, or
// whole names.
var symbolComment = regexp.MustCompile(`^// (cu\w+_v\d|_v\d)(?:, else (cu\w+))?`)

// The table names, for each method, the symbol that the seam's own comments
// promise.
func TestSymbolsAreThoseOfTheSeamsComments(t *testing.T) {
	file := parse(t, filepath.Join("..", "api", "api.go"))
	want := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		field, ok := n.(*ast.Field)
		if !ok || len(field.Names) != 1 {
			return true
		}
		if _, ok := field.Type.(*ast.FuncType); !ok {
			return true
		}
		name := field.Names[0].Name
		symbol := "cu" + name
		if field.Comment != nil {
			if m := symbolComment.FindStringSubmatch(field.Comment.List[0].Text); m != nil {
				switch {
				case m[2] != "":
					symbol = m[2]
				case strings.HasPrefix(m[1], "_"):
					symbol += m[1]
				default:
					symbol = m[1]
				}
			}
		}
		if name == "ModuleLoadData" {
			symbol = "cuModuleLoadDataEx" // from its doc comment
		}
		want[name] = symbol
		return true
	})
	delete(want, "Host")
	require.Len(t, want, len(driverMethods()))
	for method, symbol := range want {
		require.Equal(t, symbol, libcuda.SymbolOf(method), method)
		since, ok := libcuda.Introduced(symbol)
		require.True(t, ok, symbol)
		require.Regexp(t, `^\d+\.\d$`, since, symbol)
	}
	require.Equal(t, "", libcuda.SymbolOf("Host"))
	_, ok := libcuda.Introduced("cuMemAlloc")
	require.False(t, ok, "the old 32-bit symbol is not bound")
}

// Each method really calls the symbol that the table gives it.
func TestEachMethodCallsItsSymbol(t *testing.T) {
	path := fakelib.Build(t, fakelib.Without("cuDeviceGetUuid_v2"))
	d, err := libcuda.OpenPath(path)
	require.NoError(t, err)
	hooks := fakelib.Hooks(t, path)
	v := reflect.ValueOf(d)
	for _, name := range driverMethods() {
		m := v.MethodByName(name)
		args := make([]reflect.Value, m.Type().NumIn())
		for i := range args {
			in := m.Type().In(i)
			switch in.Kind() {
			case reflect.Pointer:
				args[i] = reflect.New(in.Elem())
			case reflect.Slice:
				args[i] = reflect.ValueOf([]byte("image\x00"))
			default:
				args[i] = reflect.Zero(in)
			}
		}
		symbol := libcuda.SymbolOf(name)
		before := hooks.Calls(symbol)
		m.Call(args)
		require.Equal(t, before+1, hooks.Calls(symbol), "%s calls %s", name, symbol)
	}
}

// exports lists what the stand-in defines, from its source.
func exports(t *testing.T) []string {
	src, err := os.ReadFile("fakelib/testdata/fakecuda.c")
	if err != nil {
		t.Skip("no source beside this test binary")
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^API (\w+)\(`).FindAllSubmatch(src, -1) {
		names = append(names, string(m[1]))
	}
	return names
}

func TestStandInExportsWhatIsBoundAndNothingElse(t *testing.T) {
	d, err := libcuda.OpenPath(fakelib.Build(t))
	require.NoError(t, err)
	require.Empty(t, d.MissingSymbols())
	for _, name := range exports(t) {
		if name == "cuCtxCreate_v2" {
			continue // a tool of the stand-in
		}
		_, ok := libcuda.Introduced(name)
		require.True(t, ok, name)
	}
}

// Symbols that the library lacks are an error of the methods that need them,
// by code and text; all others work.
func TestMissingSymbols(t *testing.T) {
	gone := []string{"cuStreamGetCtx", "cuMemAlloc_v2", "cuDeviceGetUuid_v2", "cuGetErrorName", "cuLaunchKernel", "cuModuleLoadDataEx"}
	var defines []string
	for _, s := range gone {
		defines = append(defines, fakelib.Without(s))
	}
	path := fakelib.Build(t, defines...)
	d, err := libcuda.OpenPath(path)
	require.NoError(t, err)
	require.Equal(t, api.Success, d.Init(0))

	for range 2 { // the second time from the cache
		_, c := d.StreamGetCtx(api.Stream(4))
		require.Equal(t, api.CodeSymbolMissing, c)
		_, c = d.MemAlloc(1)
		require.Equal(t, api.CodeSymbolMissing, c)
		require.Equal(t, api.CodeSymbolMissing, d.LaunchKernel(1, &api.Launch{}))
		_, c = d.ModuleLoadData([]byte("x\x00"), nil)
		require.Equal(t, api.CodeSymbolMissing, c)
		require.Equal(t, "", d.GetErrorName(api.InvalidValue))
	}
	id, c := d.DeviceGetUuid(0)
	require.Equal(t, api.Success, c, "falls back to the plain symbol")
	require.Equal(t, byte(1), id[15])
	n, c := d.DeviceGetCount()
	require.Equal(t, api.Success, c)
	require.Equal(t, 2, n)

	missing := d.MissingSymbols()
	slices.Sort(missing)
	slices.Sort(gone)
	require.Equal(t, gone, missing)
	text := d.MissingSymbol("StreamGetCtx")
	for _, s := range []string{d.Path(), "cuStreamGetCtx", "since CUDA 9.2"} {
		require.Contains(t, text, s)
	}
}

func parse(t *testing.T, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if os.IsNotExist(err) {
		t.Skip("no source beside this test binary")
	}
	require.NoError(t, err)
	return f
}

// The seam's signatures must not hold an address as a number: see package api.
func TestNoUintptrInTheSeam(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "api", "*.go"))
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skip("no source beside this test binary")
	}
	for _, path := range files {
		ast.Inspect(parse(t, path), func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			require.False(t, ok && id.Name == "uintptr", "uintptr in %s", path)
			return true
		})
	}
}

// A Go address becomes a number only in the argument list of a call: anywhere
// else the stack may move before the call.
func TestAddressesAreConvertedInArgumentListsOnly(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "host_") {
			continue
		}
		file := parse(t, path)
		inCall := map[ast.Node]bool{}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(sel.Sel.Name, "Call") {
				for _, arg := range call.Args {
					inCall[arg] = true
				}
			}
			if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "uintptr" {
				if inner, ok := call.Args[0].(*ast.CallExpr); ok {
					if sel, ok := inner.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Pointer" {
						found++
						require.True(t, inCall[n], "%s converts an address outside a call", path)
					}
				}
			}
			return true
		})
	}
	if len(files) > 0 {
		require.Greater(t, found, 30)
	}
}

// The layout of CUDA_MEMCPY2D is the C compiler's.
func TestMemcpy2DLayout(t *testing.T) {
	got := libcuda.Memcpy2DLayout()
	require.Len(t, got, 17)
	hooks := fakelib.Hooks(t, fakelib.Build(t))
	for i, at := range got {
		require.Equal(t, hooks.Memcpy2DLayout(i), at, "field %d", i)
	}
	require.Equal(t, -1, hooks.Memcpy2DLayout(17))
}

// TestBrokenLibraryOnThePath: a libcuda.so.1 that the loader finds and cannot
// load is a broken machine, not one without a driver. The loader reads its path
// when a process starts, so each case runs in a child.
func TestBrokenLibraryOnThePath(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("LD_LIBRARY_PATH is Linux's")
	}
	const child = "GP_TEST_OPEN_CHILD"
	if os.Getenv(child) != "" {
		_, err := libcuda.Open()
		fmt.Printf("absent=%v %v\n", errors.Is(err, libcuda.ErrNoLibrary), err)
		os.Exit(0)
	}
	run := func(dir string) string {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestBrokenLibraryOnThePath$")
		cmd.Env = append(os.Environ(), child+"=1", "LD_LIBRARY_PATH="+dir, libcuda.EnvLibrary+"=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	for name, content := range map[string]string{"empty": "", "junk": strings.Repeat("no library ", 100)} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "libcuda.so.1"), []byte(content), 0o755))
		require.Contains(t, run(dir), "absent=false", name)
	}
	dep := testenv.CompileC(t, "int dep(void) { return 1; }", "libdep.so")
	lib := testenv.CompileC(t, "int dep(void); int cuInit(unsigned f) { return dep() + (int)f; }", "libcuda.so.1", "-L"+filepath.Dir(dep), "-ldep")
	require.Contains(t, run(filepath.Dir(lib)), "absent=false", "a missing dependency")
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	absent := filepath.Join(dir, "libcuda.so.1")

	t.Setenv(libcuda.EnvLibrary, absent)
	_, err := libcuda.Open()
	require.NotErrorIs(t, err, libcuda.ErrNoLibrary, "who names a file wants that driver")
	require.ErrorContains(t, err, absent)
	require.ErrorContains(t, err, libcuda.EnvLibrary)

	t.Setenv(libcuda.EnvLibrary, "libcuda.so.1")
	_, err = libcuda.Open()
	require.ErrorContains(t, err, "not an absolute path")
	require.NotErrorIs(t, err, libcuda.ErrNoLibrary)

	broken := filepath.Join(dir, "broken.so")
	require.NoError(t, os.WriteFile(broken, []byte("MZ"), 0o600))
	t.Setenv(libcuda.EnvLibrary, broken)
	_, err = libcuda.Open()
	require.NotErrorIs(t, err, libcuda.ErrNoLibrary, "a library that is there and does not load is a broken machine")
	require.ErrorContains(t, err, broken)
	var load *libcuda.LoadError
	require.ErrorAs(t, err, &load)
	require.Len(t, load.Tried, 1)

	path := fakelib.Build(t)
	t.Setenv(libcuda.EnvLibrary, path)
	d, err := libcuda.Open()
	require.NoError(t, err)
	want, err := filepath.EvalSymlinks(path)
	require.NoError(t, err)
	got, err := filepath.EvalSymlinks(d.Path())
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestInitCodesComeThrough(t *testing.T) {
	path := fakelib.Build(t)
	d, err := libcuda.OpenPath(path)
	require.NoError(t, err)
	hooks := fakelib.Hooks(t, path)
	for _, want := range []api.Code{api.StubLibrary, api.MPSConnectionFailed, api.Unknown, api.NoDevice} {
		hooks.Fail("cuInit", int(want), 0)
		require.Equal(t, want, d.Init(0))
		_, c := d.DeviceGetCount()
		require.Equal(t, api.NotInitialized, c)
	}
	hooks.Fail("cuInit", 0, 0)
	require.Equal(t, api.Success, d.Init(0))

	d, err = libcuda.OpenPath(fakelib.Build(t, "FAKE_CUINIT=34"))
	require.NoError(t, err)
	require.Equal(t, api.StubLibrary, d.Init(0))
}

func TestFailHook(t *testing.T) {
	path := fakelib.Build(t)
	d, err := libcuda.OpenPath(path)
	require.NoError(t, err)
	hooks := fakelib.Hooks(t, path)
	hooks.Fail("cuInit", 100, 1)
	require.Equal(t, api.Success, d.Init(0))
	require.Equal(t, api.NoDevice, d.Init(0))
	hooks.Fail("cuInit", 0, 0)
	require.Equal(t, api.Success, d.Init(0))
	require.Equal(t, 3, hooks.Calls("cuInit"))
}

func TestNewContextIsForeign(t *testing.T) {
	d, hooks := standIn(t)
	ctx := api.Context(hooks.NewContext(1))
	now, c := d.CtxGetCurrent()
	require.Equal(t, api.Success, c)
	require.Zero(t, now)
	require.Equal(t, api.Success, d.CtxPushCurrent(ctx))
	dev, c := d.CtxGetDevice()
	require.Equal(t, api.Success, c)
	require.Equal(t, api.Device(1), dev)
	primary, c := d.DevicePrimaryCtxRetain(1)
	require.Equal(t, api.Success, c)
	require.NotEqual(t, primary, ctx)
	_, c = d.CtxPopCurrent()
	require.Equal(t, api.Success, c)
}

func TestHost(t *testing.T) {
	d, err := libcuda.OpenPath(fakelib.Build(t))
	require.NoError(t, err)
	h := d.Host()
	require.False(t, h.Modelled())
	before := h.Now()
	h.Sleep(3 * time.Millisecond)
	require.GreaterOrEqual(t, h.Now()-before, 3*time.Millisecond)
	if _, err := os.Stat("/proc/self/maps"); err == nil {
		text, err := fs.ReadFile(h.FS(), "proc/self/maps")
		require.NoError(t, err)
		require.NotEmpty(t, text)
	}
}

// The names are part of what a user may have to provide.
func TestCandidates(t *testing.T) {
	require.Equal(t, []string{"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"}, libcuda.Candidates("linux"))
	require.Equal(t, []string{"nvcuda.dll"}, libcuda.Candidates("windows"))
	require.Empty(t, libcuda.Candidates("darwin"))
}

// The price of the seam, as the least of many short rounds so that a busy
// machine does not show: 100 ns over C by our own trampoline, and what a loaded
// machine may take of purego's SyscallN where that is in use.
func TestSeamCallCost(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	d, hooks := standIn(t, "FAKE_QUIET")
	h := d.Host()
	best, bestC := time.Hour, float64(time.Hour)
	const calls = 2000
	for range 100 {
		start := h.Now()
		for range calls {
			d.StreamQuery(0)
		}
		best = min(best, h.Now()-start)
		bestC = min(bestC, hooks.LoopNs("cuStreamQuery", calls, 0))
	}
	over := (float64(best.Nanoseconds()) - bestC) / calls
	t.Logf("seam call %.1f ns, in C %.1f ns, over C %.1f ns", float64(best.Nanoseconds())/calls, bestC/calls, over)
	most := 600.0
	if ownTrampoline {
		most = 100
	}
	require.Less(t, over, most)
}
