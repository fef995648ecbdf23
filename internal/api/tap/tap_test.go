// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

// void is a driver of a few methods.
type void struct {
	api.Driver
	last string
}

func (v *void) Init(uint32) api.Code            { v.last = "Init"; return api.Success }
func (v *void) StreamQuery(api.Stream) api.Code { v.last = "StreamQuery"; return api.NotReady }
func (v *void) EventRecord(api.Event, api.Stream) api.Code {
	v.last = "EventRecord"
	return api.Success
}
func (v *void) MemAlloc(uint64) (api.Ptr, api.Code) { v.last = "MemAlloc"; return 4096, api.Success }
func (v *void) GetErrorString(api.Code) string      { return "text" }
func (v *void) GetErrorName(api.Code) string        { return "NAME" }
func (v *void) Path() string                        { return "/lib/libcuda.so.1" }

// Every method of api.Driver but Host is counted under its own name, calls the
// same method of the driver behind, and ends with the code that a rule gives.
// The driver behind is a tap too, which ends all calls.
func TestEveryMethodPassesThrough(t *testing.T) {
	typ := reflect.TypeFor[api.Driver]()
	require.Equal(t, int(methods), typ.NumMethod()-1, "methods of api.Driver but Host")
	for i := range typ.NumMethod() {
		m := typ.Method(i)
		if m.Name == "Host" {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			in := make([]reflect.Value, m.Type.NumIn())
			for k := range in {
				in[k] = reflect.Zero(m.Type.In(k))
			}
			behind := New(&void{})
			behind.SkipFrom("", 1)
			tp := New(behind)
			call := reflect.ValueOf(tp).MethodByName(m.Name)
			call.Call(in)
			require.Equal(t, map[string]uint64{m.Name: 1}, tp.Counts())
			require.Equal(t, map[string]uint64{m.Name: 1}, behind.Counts())
			if m.Type.Out(m.Type.NumOut()-1) != reflect.TypeFor[api.Code]() {
				return
			}
			rule := tp.Fail(m.Name, 1, api.LaunchFailed)
			out := call.Call(in)
			require.Equal(t, api.LaunchFailed, out[len(out)-1].Interface())
			require.Equal(t, 1, rule.Hits())
			require.EqualValues(t, 2, tp.Count(m.Name))
			require.EqualValues(t, 1, behind.Count(m.Name), "a failing call reached the driver")
		})
	}
}

// Each method hands its own parameters on in their order, and returns what the
// driver behind returns.
func TestEveryMethodHandsItsArgumentsOn(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "methods.go", nil, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the source is not here") // but only the test's binary, on a GPU host
	}
	require.NoError(t, err)
	seen := 0
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		seen++
		var params, args []string
		for _, f := range fn.Type.Params.List {
			for _, n := range f.Names {
				params = append(params, n.Name)
			}
		}
		ret, ok := fn.Body.List[len(fn.Body.List)-1].(*ast.ReturnStmt)
		require.True(t, ok && len(ret.Results) == 1, fn.Name.Name)
		call, ok := ret.Results[0].(*ast.CallExpr)
		require.True(t, ok, fn.Name.Name)
		require.Equal(t, fn.Name.Name, call.Fun.(*ast.SelectorExpr).Sel.Name)
		for _, a := range call.Args {
			args = append(args, a.(*ast.Ident).Name)
		}
		require.Equal(t, params, args, fn.Name.Name)
	}
	require.Equal(t, reflect.TypeFor[api.Driver]().NumMethod(), seen)
}

func TestFailAndSkipCountFromNow(t *testing.T) {
	v := &void{}
	tp := New(v)
	require.Equal(t, api.Success, tp.Init(0))
	tp.Fail("MemAlloc", 2, api.OutOfMemory)
	p, c := tp.MemAlloc(1)
	require.Equal(t, api.Ptr(4096), p)
	require.Equal(t, api.Success, c)
	p, c = tp.MemAlloc(1)
	require.Zero(t, p)
	require.Equal(t, api.OutOfMemory, c)
	_, c = tp.MemAlloc(1)
	require.Equal(t, api.Success, c, "a rule of Fail acts once")

	tp.Fail("", 3, api.LaunchFailed)
	require.Equal(t, api.NotReady, tp.StreamQuery(3))
	tp.GetErrorName(1) // texts are not calls to fail
	require.Equal(t, api.Success, tp.EventRecord(1, 3))
	require.Equal(t, api.LaunchFailed, tp.StreamQuery(3))

	skip := tp.SkipFrom("EventRecord", 1)
	v.last = ""
	require.Equal(t, api.Success, tp.EventRecord(1, 3))
	require.Equal(t, api.Success, tp.EventRecord(1, 3))
	require.Empty(t, v.last, "a skipped call reached the driver")
	require.Equal(t, 2, skip.Hits())
	skip.Remove()
	require.Equal(t, api.Success, tp.EventRecord(1, 3))
	require.Equal(t, "EventRecord", v.last)

	require.EqualValues(t, 10, tp.Total())
	require.EqualValues(t, 4, tp.Count("EventRecord"))
	require.Equal(t, "/lib/libcuda.so.1", tp.Path())
	require.Panics(t, func() { tp.Fail("NoSuchCall", 1, 1) })
	require.Panics(t, func() { tp.Fail("", 0, 1) })
	tp.Reset()
	require.Zero(t, tp.Total())
	require.Empty(t, tp.Counts())
}

func TestFailFromGoesOn(t *testing.T) {
	tp := New(&void{})
	r := tp.FailFrom("", 2, api.LaunchFailed)
	require.Equal(t, api.Success, tp.Init(0))
	require.Equal(t, api.LaunchFailed, tp.Init(0))
	require.Equal(t, api.LaunchFailed, tp.EventRecord(1, 1))
	require.Equal(t, 2, r.Hits())
}

func TestLog(t *testing.T) {
	tp := New(&void{})
	tp.Init(0)
	tp.Log()
	tp.MemAlloc(1)
	tp.Fail("EventRecord", 1, api.InvalidHandle)
	tp.EventRecord(1, 1)
	tp.StreamQuery(1)
	require.Equal(t, []string{"MemAlloc", "EventRecord", "StreamQuery"}, tp.Calls())
	tp.Reset()
	tp.Init(0)
	require.Empty(t, tp.Calls())
}

func TestConcurrentCallsAreAllCounted(t *testing.T) {
	tp := New(quiet{})
	rule := tp.Fail("StreamQuery", 100, api.LaunchFailed)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				tp.StreamQuery(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 8000, tp.Count("StreamQuery"))
	require.Equal(t, 1, rule.Hits())
}

type quiet struct{ api.Driver }

func (quiet) StreamQuery(api.Stream) api.Code { return api.NotReady }

func TestIdleTapAllocatesNothing(t *testing.T) {
	testenv.SkipUnlessOptimized(t)
	var d api.Driver = New(quiet{})
	require.Zero(t, testing.AllocsPerRun(100, func() { d.StreamQuery(1) }))
}

// TestInFrontOfCalls: At and Each see the call that is to come, which passes.
func TestInFrontOfCalls(t *testing.T) {
	tp := New(&void{})
	before, all := -1, 0
	rule := tp.At("MemAlloc", 2, func() { before = int(tp.Total()) })
	each := tp.Each(func() { all++ })
	for range 3 {
		p, c := tp.MemAlloc(1)
		require.Zero(t, c)
		require.Equal(t, api.Ptr(4096), p)
	}
	require.Equal(t, 2, before)
	require.Equal(t, 1, rule.Hits())
	require.Equal(t, 3, all)
	require.Equal(t, 3, each.Hits())
	each.Remove()
	_, _ = tp.MemAlloc(1)
	require.Equal(t, 3, all)
}
