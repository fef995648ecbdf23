// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoundTrip(t *testing.T) {
	f := machineOf(rtx4090, rtx3090)
	f.Devices[0].BAR1 = Known(uint64(0), "a zero that was read")
	f.Devices[1].BAR1 = Failed[uint64]("nvmlDeviceGetBAR1MemoryInfo", "not supported", 3)
	f.Devices[1].NUMA = Known(-1, "sysfs")
	f.Devices[0].Path = Known([]Bridge{{BusID: "0000:00:01.1", ACS: Unknown[ACS]("config", "permission denied")}}, "sysfs")
	f.Devices[0].BARs = Known([]BAR{{Line: 3, Start: 0x28800000000, Size: 32 * gib, Memory: true, Is64: true}}, "resource")
	back, err := Parse([]byte(mustJSON(t, f)))
	require.NoError(t, err)
	require.Equal(t, f, back)
	v, ok := back.Devices[0].BAR1.Get()
	require.True(t, ok, "a known zero is not an unknown value")
	require.Zero(t, v)
	require.Equal(t, 3, back.Devices[1].BAR1.Code)
	require.Equal(t, "nvmlDeviceGetBAR1MemoryInfo: not supported", back.Devices[1].BAR1.Why())
	require.False(t, back.Devices[1].Serial.Asked())
	require.Contains(t, mustJSON(t, f), `"0x2684"`)
	require.NotContains(t, mustJSON(t, f), `"serial"`, "what nobody asked for is not in the file")
}

func TestValue(t *testing.T) {
	require.Equal(t, "not read", Value[int]{}.Why())
	require.Equal(t, "5", Known(5, "s").String())
	require.Equal(t, "unknown (s: gone)", Unknown[int]("s", "gone").String())
	require.Equal(t, 7, Unknown[int]("s", "gone").Or(7))
	require.Empty(t, Known(5, "s").Why())
	var v Value[int]
	require.ErrorContains(t, json.Unmarshal([]byte(`{"value":1,"error":"x"}`), &v), "both")
	var h Hex
	require.NoError(t, json.Unmarshal([]byte(`"255"`), &h))
	require.Equal(t, Hex(255), h)
	require.Error(t, json.Unmarshal([]byte(`"0xzz"`), &h))
	require.Error(t, json.Unmarshal([]byte(`"-1"`), &h))
}

func hostileFiles() map[string]string {
	gpus := func(n int) string {
		return `{"schema":1,"devices":[` + strings.TrimSuffix(strings.Repeat(`{},`, n), ",") + `],"pairs":[]}`
	}
	return map[string]string{
		"empty":                   "",
		"no schema":               `{"devices":[],"pairs":[]}`,
		"schema 0":                `{"schema":0}`,
		"schema of text":          `{"schema":"1"}`,
		"newer schema":            `{"schema":2}`,
		"a NUL":                   "{\"schema\":1,\"note\":\"a\x00b\"}",
		"only NULs":               strings.Repeat("\x00", 1<<16),
		"a line of 1 MB":          `{"schema":1,"note":"` + strings.Repeat("a", 1<<20) + `"}`,
		"a word of 1 MB":          strings.Repeat("a", 1<<20),
		"a number of 1 MB":        `{"schema":` + strings.Repeat("1", 1<<20) + `}`,
		"10,000 GPUs":             gpus(10000),
		"65 GPUs":                 gpus(65),
		"deep":                    strings.Repeat("[", 100000),
		"deep objects":            strings.Repeat(`{"a":`, 100000),
		"many lists":              `{"schema":1,"x":[` + strings.TrimSuffix(strings.Repeat("[1,2,3,4,5,6,7,8,9],", 4000), ",") + `]}`,
		"many names":              `{"schema":1,"x":[` + strings.TrimSuffix(strings.Repeat(`{"a":1,"b":1},`, 600000), ",") + `]}`,
		"a wide object":           `{"schema":1` + strings.Repeat(`,"a":1`, 5000) + `}`,
		"larger than 8 MiB":       `{"schema":1}` + strings.Repeat(" ", 8<<20),
		"unfinished string":       `{"schema":1,"note":"`,
		"unfinished escape":       `{"schema":1,"note":"\`,
		"closes what is not open": `]]]]`,
		"no JSON":                 `schema: 1`,
		"two documents":           `{"schema":1} {"schema":1}`,
		"a pair of nobody":        `{"schema":1,"devices":[{}],"pairs":[{"from":0,"to":1}]}`,
		"a negative pair":         `{"schema":1,"devices":[{}],"pairs":[{"from":-1,"to":0}]}`,
		"a pair of one":           `{"schema":1,"devices":[{}],"pairs":[{"from":0,"to":0}]}`,
		"a pair twice":            `{"schema":1,"devices":[{},{}],"pairs":[{"from":0,"to":1},{"from":0,"to":1}]}`,
		"known and unknown":       `{"schema":1,"machine":{"kernel":{"value":"6","error":"no"}}}`,
		"a list for a number":     `{"schema":1,"devices":[{"bar1":{"value":[1]}}]}`,
		"a number too large":      `{"schema":1,"devices":[{"bar1":{"value":99999999999999999999}}]}`,
	}
}

func TestHostileFiles(t *testing.T) {
	for name, text := range hostileFiles() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		_, err := Load(strings.NewReader(text))
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, ErrFacts, name)
		require.Less(t, len(err.Error()), 400, name)
		// Reading the text itself costs a few times its size.
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8*len(text)+1<<20), name)
	}
	// One that never ends is not read to its end.
	_, err := Load(endless{})
	require.ErrorIs(t, err, ErrFacts)
	_, err = Load(io.MultiReader(strings.NewReader("{"), failing{}))
	require.ErrorIs(t, err, io.ErrClosedPipe)
	require.NotErrorIs(t, err, ErrFacts, "the disk's fault, not the file's")
}

// The largest file that is legal does not grow without bound either.
func TestLegalFileWithinMemory(t *testing.T) {
	list := strings.TrimSuffix(strings.Repeat(`{},`, maxDevices), ",")
	bridges := strings.TrimSuffix(strings.Repeat(`{},`, 400), ",")
	devices := strings.ReplaceAll(list, "{}", `{"path":{"value":[`+bridges+`]}}`)
	text := `{"schema":1,"devices":[` + devices + `],"pairs":[]}`
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f, err := Load(strings.NewReader(text))
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	require.Len(t, f.Devices, maxDevices)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(128<<20))
	requireCoherent(t, Diagnose(f, nil))
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestMasked(t *testing.T) {
	const (
		uuid0, uuid1 = "GPU-49c7a6c9-e3a8-3b48-f0ba-171520d77dd1", "GPU-1aa5c6a1-b1b3-45c3-9c12-dd2b75f4e0a2"
		serial       = "1650522003820"
	)
	f := machineOf(rtx4090.with(256, 0xffc0), rtx4090)
	f.Devices[0].UUID, f.Devices[1].UUID = uuid0, uuid1
	f.Devices[0].Serial = Known(serial, "nvmlDeviceGetSerial")
	f.Devices[1].Serial = Known("0", "nvmlDeviceGetSerial")
	f.Devices[1].Display = Unknown[bool]("nvmlDeviceGetDisplayActive", "GPU "+strings.ToUpper(uuid1[4:])+" said no, serial "+serial)
	f.Machine.Kernel = Known("Linux version 6.8.0 (alice@build.example.org) (gcc 13)", "/proc/version")
	f.Driver.Line = Known("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (alice@rig)", "/proc/driver/nvidia/version")
	f.CUDA.Path = "/home/alice/lib/libcuda.so.1"
	f.Environment.Variables = map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-49c7," + uuid1 + ",MIG-11112222-3333-4444-5555-666677778888"}
	before := mustJSON(t, f)

	m, err := f.Masked()
	require.NoError(t, err)
	require.Equal(t, before, mustJSON(t, f), "the facts themselves are not changed")
	text := strings.ToLower(mustJSON(t, m))
	for _, secret := range []string{"49c7", "1aa5c6a1", "dd2b75f4e0a2", "11112222", serial, "alice", "rig)", "example.org"} {
		require.NotContains(t, text, secret)
	}
	require.Equal(t, "GPU-00000000-0000-0000-0000-000000000001", m.Devices[0].UUID)
	require.Equal(t, "GPU-00000000-0000-0000-0000-000000000002", m.Devices[1].UUID)
	require.Contains(t, m.Devices[1].Display.Error, "000000000002 said no", "the same one everywhere")
	require.Equal(t, "GPU-00000000-0000-0000-0000-000000000001,GPU-00000000-0000-0000-0000-000000000002,MIG-00000000-0000-0000-0000-000000000003", m.Environment.Variables["CUDA_VISIBLE_DEVICES"])
	require.Equal(t, "masked", m.Devices[1].Serial.Or(""))
	require.Contains(t, m.Driver.Line.Or(""), "Release Build")

	require.Equal(t, Diagnose(f, nil).Pairs, Diagnose(m, nil).Pairs, "the diagnosis is the same")
	again, err := m.Masked()
	require.NoError(t, err)
	require.Equal(t, m, again)

	// A UUID that is none is masked too.
	f.Devices[0].UUID = "GPU-" + serial
	m, err = f.Masked()
	require.NoError(t, err)
	require.NotContains(t, mustJSON(t, m), serial)
}

func FuzzFacts(f *testing.F) {
	// Small seeds: the fuzzer spends its time on making large ones smaller.
	for _, text := range []string{
		`{"schema":1,"devices":[{"bus_id":"0000:01:00.0","cuda":{"index":0,"seen":true},"nvml":{"index":0,"seen":true},"device_id":{"value":"0x2684"},"memory":{"value":25757220864},"bar1":{"value":268435456},"resize_mask":{"value":"0xffc0"}},{"cuda":{"index":1,"seen":true},"nvml":{"index":1,"seen":true,"code":15}}],"pairs":[{"from":0,"to":1,"can_access":{"value":false},"read":{"value":"CNS"}}],"cuda":{"usable":true},"nvml":{"usable":true}}`,
		`{"schema":1,"machine":{"os":"linux"},"driver":{"flavour":{"value":"open"},"version":{"value":"565.57.01"},"params":{"value":{"RegistryDwords":"ForceP2P=0x0;RMForceP2PType=2"}}},"devices":[{"device_id":{"value":"0x2204"}},{"device_id":{"value":"0x2206"}}],"pairs":[{"from":1,"to":0,"can_access":{"value":true},"nvlink":{"value":"OK"},"transfer":{"value":{"outcome":"mismatch"}}}],"cuda":{"usable":true},"nvml":{"usable":false,"code":18}}`,
		`{"schema":1,"environment":{"vm":{"value":"kvm"},"container":{"value":"lxc"}},"cuda":{"usable":false,"path":"x","code":999},"nvml":{"usable":false},"nodes":[{"path":"/dev/nvidia-uvm","exists":true,"major":507,"want_major":{"value":509}},{"path":"/dev/nvidia0","open_error":"EPERM"}],"devices":[{"iommu_type":{"value":"DMA"},"path":{"value":[{"bus_id":"x","acs":{"value":{"present":true,"control":"0x1d"}}}]}},{}],"pairs":[{"from":0,"to":1}]}`,
	} {
		_, err := Parse([]byte(text))
		require.NoError(f, err)
		f.Add([]byte(text))
	}
	for _, text := range hostileFiles() {
		if len(text) < 1<<10 {
			f.Add([]byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		facts, err := Load(bytes.NewReader(b))
		if err != nil {
			require.ErrorIs(t, err, ErrFacts)
			return
		}
		r := Diagnose(facts, nil)
		requireCoherent(t, r)
		require.Equal(t, r, Diagnose(facts, nil))
		var text bytes.Buffer
		require.NoError(t, r.WriteText(&text))
		require.False(t, bytes.ContainsFunc(text.Bytes(), func(c rune) bool { return c != '\n' && c < ' ' }), "control characters")
		var once bytes.Buffer
		require.NoError(t, Save(&once, facts))
		back, err := Parse(once.Bytes())
		require.NoError(t, err)
		var twice bytes.Buffer
		require.NoError(t, Save(&twice, back))
		require.Equal(t, once.String(), twice.String())
	})
}

func TestReportForPeople(t *testing.T) {
	f := machineOf(rtx4090, rtx4090)
	f.Note = "evil \x1b[2J note\r\n and \u202e more"
	f.Devices[0].Name = Known("NVIDIA GeForce \x1b]0;x\x07", "nvmlDeviceGetName")
	var b bytes.Buffer
	require.NoError(t, Diagnose(f, nil).WriteText(&b))
	require.NotContains(t, b.String(), "\x1b")
	require.NotContains(t, b.String(), "\u202e")
	require.NotContains(t, b.String(), "\r")

	one := Diagnose(machineOf(rtx4090), nil)
	b.Reset()
	require.NoError(t, one.WriteText(&b))
	require.Contains(t, b.String(), "there is one GPU")
	require.Equal(t, StatusJudged, one.Status)
	require.Nil(t, one.Pair(0, 1))
	require.Nil(t, one.Pair(0, 0))

	// Sixteen GPUs: the causes do not list 240 directions.
	cards := make([]card, 16)
	for i := range cards {
		cards[i] = rtx4090
	}
	f = machineOf(cards...)
	f.Devices[3].MIG = Known(true, "nvmlDeviceGetMigMode")
	b.Reset()
	r := Diagnose(f, nil)
	require.NoError(t, r.WriteText(&b))
	require.Contains(t, b.String(), "and 5 more pairs")
	require.Contains(t, b.String(), "more alike")
	for _, line := range strings.Split(b.String(), "\n") {
		require.LessOrEqual(t, len(line), 160, line)
	}
	requireCoherent(t, r)
}

// The names that programs read.
func TestReportJSON(t *testing.T) {
	f := withNVLink(true)
	f.Pairs[0].Transfer = Known(Transfer{Outcome: OutcomeProven, BytesPerSecond: 50e9, Latency: 2e-6, StagedBytesPerSecond: 20e9}, TransferSource)
	var b bytes.Buffer
	r := Diagnose(f, nil)
	require.NoError(t, r.WriteJSON(&b))
	var doc map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &doc))
	require.Equal(t, 1.0, doc["schema"])
	require.Equal(t, "judged", doc["status"])
	pair := doc["pairs"].([]any)[0].(map[string]any)
	require.Equal(t, "nvlink", pair["headline"])
	require.Equal(t, "on", pair["state"])
	require.Equal(t, true, pair["verified"])
	require.Equal(t, true, pair["can_access"])
	require.Equal(t, "not needed", pair["patch"])
	require.Equal(t, 50e9, pair["transfer"].(map[string]any)["bytes_per_second"])
	require.Equal(t, "NV4", doc["topology"].([]any)[0].([]any)[1])
	require.Equal(t, "nvlink", doc["causes"].([]any)[0].(map[string]any)["id"])
	b.Reset()
	require.NoError(t, r.WriteText(&b))
	require.Contains(t, b.String(), "GPU0 -> GPU1    proven, 50.0 GB/s, 2.0 us a small copy; through host memory 20.0 GB/s")
	require.Contains(t, b.String(), fmt.Sprintf("%-6s %-6s NV4", "GPU0", "X"))
}
