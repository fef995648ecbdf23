// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const readme = "# x\n\n" + begin + "\nold\n" + end + "\n\nafter\n"

// repository makes a folder with a README and records.
func repository(t *testing.T, records map[string]string) string {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "docs", "measured"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "README.md"), []byte(readme), 0o600))
	for name, text := range records {
		require.NoError(t, os.WriteFile(filepath.Join(root, "docs", "measured", name), []byte(text), 0o600))
	}
	return root
}

const saved = `{"version": 1, "bench": "default", "date": "2027-01-02T03:04:05Z", "machine": {"name": "2x GPU", "driver": "600.1", "modelled": false}, "results": [
 {"op": "d2h", "algorithm": "dma", "ranks": 1, "bytes": 268435456, "seconds": 0.01, "algbw_gb_per_s": 26.8, "case": "link.d2h", "gpus": "1"},
 {"op": "copy", "algorithm": "bare", "ranks": 2, "bytes": 268435456, "seconds": 0.01, "algbw_gb_per_s": 99, "case": "copy.bare.one_way", "gpus": "0>1"},
 {"op": "copy", "algorithm": "staged", "ranks": 2, "bytes": 4096, "seconds": 0.0000105, "algbw_gb_per_s": 0.39, "case": "copy.staged.one_way", "gpus": "0>1"},
 {"op": "copy", "algorithm": "staged", "ranks": 2, "bytes": 2097152, "seconds": 0.0002, "algbw_gb_per_s": 10.4, "case": "copy.staged.one_way", "gpus": "0>1"},
 {"op": "copy", "algorithm": "staged", "ranks": 2, "bytes": 16777216, "seconds": 0.0008, "algbw_gb_per_s": 20.97, "case": "copy.staged.both_ways", "gpus": "0>1 1>0", "ratio_to_ceiling": 0.875},
 {"op": "all_reduce", "algorithm": "two_shot", "type": "float32", "reduction": "sum", "ranks": 4, "bytes": 1048576, "seconds": 0.0005, "algbw_gb_per_s": 2.1, "busbw_gb_per_s": 3.15, "case": "all_reduce", "gpus": "0 1 0 1", "asked": "auto", "in_place": false},
 {"op": "all_reduce", "algorithm": "ring", "type": "float32", "reduction": "sum", "ranks": 4, "bytes": 1048576, "seconds": 0.0005, "case": "all_reduce", "gpus": "0 1 0 1", "asked": "ring", "in_place": false},
 {"op": "all_reduce", "algorithm": "two_shot", "type": "float32", "reduction": "sum", "ranks": 4, "bytes": 1048576, "seconds": 0.0005, "case": "all_reduce", "gpus": "0 1 0 1", "asked": "auto", "in_place": true}
]}`

func TestTable(t *testing.T) {
	root := repository(t, map[string]string{
		"2026-12-01-2xgpu.json": strings.ReplaceAll(saved, "26.8", "11.1"), // an older record of the machine
		"2027-01-02-2xgpu.json": saved,
		"2027-01-02-facts.json": `{"schema": 1, "devices": []}`,
		"2027-01-02-1xold.json": `{"date": "2027-01-02", "machine": "1x Old, driver 1", "measured": {"copy": {"d2h_gb_per_s": 54.74, "h2d_gb_per_s": 55, "both_ways_gb_per_s": 98.2,
			"copy_1gib_payload_gb_per_s": 48.7, "copy_1gib_ratio_to_ceiling": 0.998, "points": [{"bytes": 65536, "median_seconds": 0.0000128, "payload_gb_per_s": 5.1}]},
			"all_reduce": {"ranks": 2, "type": "int32", "reduction": "sum", "points": [{"algorithm": "ring", "bytes": 1048576, "median_seconds": 0.001}]}},
			"bench-copy": null}`,
	})
	require.ErrorContains(t, run(root, true, io.Discard), "run make readme-figures")
	require.NoError(t, run(root, false, io.Discard))
	require.NoError(t, run(root, true, io.Discard), "what was written is not stale")
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	text := string(b)
	require.True(t, strings.HasPrefix(text, "# x\n\n"+begin) && strings.HasSuffix(text, end+"\n\nafter\n"))
	for _, line := range []string{
		"2x GPU, driver 600.1; 2027-01-02, [record](docs/measured/2027-01-02-2xgpu.json):",
		"| link of GPU 1, device to host | 256 MiB | 26.8 GB/s |  |",
		"| staged copy, one way, GPU 0 to 1 | 4 KiB | 10.5 us |  |",
		"| staged copy, one way, GPU 0 to 1 | 2 MiB | 10.4 GB/s |  |",
		"| staged copy, both ways together, GPUs 0 and 1 | 16 MiB | 21.0 GB/s | 88% |",
		"| all_reduce of float32, sum, 4 ranks on GPU 0 1 (two_shot) | 1 MiB | 500.0 us, busbw 3.1 GB/s |  |",
		"| link, device to host | 256 MiB | 54.7 GB/s |  |",
		"| staged copy, one way | 1 GiB | 48.7 GB/s | 100% |",
		"| staged copy, one way | 64 KiB | 12.8 us |  |",
		"| all_reduce of int32, sum, 2 ranks (ring) | 1 MiB | 1.00 ms, busbw 1.0 GB/s |  |",
	} {
		require.Contains(t, text, line+"\n")
	}
	require.NotContains(t, text, "11.1", "the older record")
	require.NotContains(t, text, "99", "a ceiling is no figure of the library's")
	require.Equal(t, 1, strings.Count(text, "| all_reduce of float32"), "neither in place nor what was not the library's choice")
}

// Of two records of one machine and day the later one is shown, whatever their
// names, and of an older one what the later has not.
func TestNewest(t *testing.T) {
	doc := func(hour, seconds string) string {
		return `{"version": 1, "bench": "all_reduce", "date": "2027-01-02T` + hour + `:00:00Z", "machine": {"name": "1x GPU", "driver": "600.1"}, "results": [
			{"op": "all_reduce", "algorithm": "ring", "type": "float32", "reduction": "sum", "ranks": 2, "bytes": 67108864, "seconds": ` + seconds + `, "busbw_gb_per_s": 20, "case": "all_reduce", "gpus": "0 0", "asked": "auto", "in_place": false, "ratio_to_ceiling": 0.9},
			{"op": "all_reduce", "algorithm": "one_shot", "type": "float32", "reduction": "sum", "ranks": 2, "bytes": 1024, "seconds": 0.00002, "case": "all_reduce", "gpus": "0 0", "asked": "auto", "in_place": false, "ratio_to_ceiling": 0.01},
			{"op": "broadcast", "algorithm": "direct", "type": "float32", "ranks": 2, "bytes": 65536, "seconds": 0.00003, "case": "broadcast", "gpus": "0 0", "asked": "auto", "in_place": false},
			{"op": "broadcast", "algorithm": "direct", "type": "float32", "ranks": 2, "bytes": 67108864, "seconds": 0.0015, "busbw_gb_per_s": 44.7, "case": "broadcast", "gpus": "0 0", "asked": "auto", "in_place": false}]}`
	}
	inside := func(documents string) string {
		return `{"date": "2027-01-02", "machine": "1x GPU, driver 600.1", "measured": {
			"copy": {"d2h_gb_per_s": 54, "h2d_gb_per_s": 53, "both_ways_gb_per_s": 98, "copy_1gib_payload_gb_per_s": 48.7, "copy_1gib_ratio_to_ceiling": 0.998, "points": []},
			"collectives": {"type": "float32", "points": [
				{"op": "all_reduce", "ranks": 2, "bytes": 268435456, "algorithm": "ring", "auto": true, "median_seconds": 0.9, "bound_over_time": 0.95},
				{"op": "all_to_all", "ranks": 4, "bytes": 67108864, "algorithm": "direct", "auto": true, "median_seconds": 0.005, "bound_over_time": 0.85},
				{"op": "all_to_all", "ranks": 4, "bytes": 67108864, "algorithm": "one_shot", "auto": false, "median_seconds": 0.7}]}}` + documents + `}`
	}
	root := repository(t, map[string]string{
		"2027-01-02-1xgpu.json":        inside(""),
		"2027-01-02-1xgpu-engine.json": inside(`, "bench-default-again": ` + doc("08", "0.8") + `, "bench-default": ` + doc("08", "0.7") + `, "bench-all_reduce-2": ` + doc("07", "0.003")),
	})
	require.NoError(t, run(root, false, io.Discard))
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	table := func(lines ...string) string {
		return "; 2027-01-02, [record](docs/measured/2027-01-02-1xgpu-engine.json):\n\n| what | size | figure | of the links' ceiling |\n|---|---|---|---|\n" + strings.Join(lines, "\n") + "\n\n" + end
	}
	require.Contains(t, string(b), table(
		"| link, device to host | 256 MiB | 54.0 GB/s |  |",
		"| link, host to device | 256 MiB | 53.0 GB/s |  |",
		"| link, both at once, together | 256 MiB | 98.0 GB/s |  |",
		"| staged copy, one way | 1 GiB | 48.7 GB/s | 100% |",
		"| all_reduce of float32, sum, 2 ranks on GPU 0 (one_shot) | 1 KiB | 20.0 us |  |",
		"| all_reduce of float32, sum, 2 ranks on GPU 0 (ring) | 64 MiB | 3.00 ms, busbw 20.0 GB/s | 90% |",
		"| broadcast of float32, 2 ranks on GPU 0 (direct) | 64 MiB | 1.50 ms, busbw 44.7 GB/s |  |",
		"| all_to_all of float32, 4 ranks (direct) | 64 MiB | 5.00 ms, busbw 10.1 GB/s | 85% |",
	))
	require.Equal(t, 1, strings.Count(string(b), "[record]"), "the older one has nothing more")

	// The later record by itself has no links: those are the older one's.
	require.NoError(t, os.WriteFile(filepath.Join(root, "docs", "measured", "2027-01-02-1xgpu-engine.json"), []byte(doc("08", "0.003")), 0o600))
	require.NoError(t, run(root, false, io.Discard))
	b, err = os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	later, older, ok := strings.Cut(string(b), "[record](docs/measured/2027-01-02-1xgpu.json)")
	require.True(t, ok)
	require.Contains(t, later, "| all_reduce of float32, sum, 2 ranks on GPU 0 (ring) | 64 MiB | 3.00 ms")
	require.NotContains(t, older, "all_reduce")
	require.Contains(t, older, "| link, device to host | 256 MiB | 54.0 GB/s |  |")
	require.Contains(t, older, "| all_to_all of float32, 4 ranks (direct) |")
}

// Modelled figures never enter, and no more does what was wrong or is not known.
func TestRefused(t *testing.T) {
	for why, record := range map[string]string{
		"modelled":               strings.Replace(saved, `"modelled": false`, `"modelled": true`, 1),
		"modelled figures":       strings.Replace(saved, `"op": "copy"`, `"modelled": true, "op": "copy"`, 1),
		"moved wrong data":       strings.Replace(saved, `"op": "copy"`, `"wrong": 3, "op": "copy"`, 1),
		"version 2":              strings.Replace(saved, `"version": 1`, `"version": 2`, 1),
		"unexpected end of JSON": `{`,
	} {
		root := repository(t, map[string]string{"a.json": record})
		require.ErrorContains(t, run(root, false, io.Discard), why)
		require.ErrorContains(t, run(root, true, io.Discard), "a.json")
	}
	inside := `{"date": "d", "machine": "1x G, driver 1", "measured": {}, "bench-copy": ` + strings.Replace(saved, `"modelled": false`, `"modelled": true`, 1) + `}`
	require.ErrorContains(t, run(repository(t, map[string]string{"a.json": inside}), false, io.Discard), "bench-copy: it holds modelled figures")
	stand := `{"date": "d", "machine": "simulated machine 2x4090, every figure is modelled", "measured": {}}`
	require.ErrorIs(t, run(repository(t, map[string]string{"a.json": stand}), false, io.Discard), errModelled)

	root := repository(t, nil)
	require.NoError(t, os.WriteFile(filepath.Join(root, "README.md"), []byte("no markers"), 0o600))
	require.ErrorContains(t, run(root, true, io.Discard), "wants one line")
}

// Several GPUs are shown with what others took for the same, and without what the
// record has of ranks that shared a card.
func TestSeveralGPUs(t *testing.T) {
	root := repository(t, map[string]string{"2027-01-03-2xgpu.json": `{"date": "2027-01-03T00:00:00Z", "machine": "2x GPU, driver 600.1",
 "measured": {"copy": {"d2h_gb_per_s": 54.74}, "collectives": {"type": "float32", "one_card": true, "points": [{"op": "all_to_all", "ranks": 8, "bytes": 1024, "algorithm": "direct", "auto": true, "median_seconds": 1}]}}}`,
		"2027-01-02-2xgpu.json": `{"date": "2027-01-02", "machine": "2x GPU, driver 600.1",
 "measured": {"collectives": {"type": "float32", "points": [{"op": "all_reduce", "ranks": 8, "bytes": 1024, "algorithm": "ring", "auto": true, "median_seconds": 1}]}},
 "multi": {"links": [{"op": "d2h", "algorithm": "dma", "ranks": 1, "bytes": 268435456, "seconds": 0.01, "algbw_gb_per_s": 26.8, "case": "link.d2h", "gpus": "0"}],
  "copies": [{"ways": 2, "bytes": 67108864, "routes": {"staged": {"seconds": 0.002, "of_bound": 0.9}, "driver": {"seconds": 0.003}}, "nccl": {"nccl.shm": {"seconds": 0.004}, "nccl.nvlink": {"seconds": 0.0001}}},
             {"ways": 1, "bytes": 16384, "routes": {"staged": {"seconds": 0.00001}}, "nccl": {}}],
  "collectives": [{"op": "all_reduce", "ranks": 2, "bytes": 1048576, "chosen": "two_shot", "ours": {"seconds": 0.0001}, "of_bound": 0.3,
   "nccl": {"nccl.shm": {"seconds": 0.00009}, "nccl.channels8": {"seconds": 0.00008}}, "nccl_best": "nccl.channels8"}]}}`})
	require.NoError(t, run(root, false, io.Discard))
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	for _, line := range []string{
		"| what | size | figure | of the links' ceiling | the same by others, and their time over ours |",
		"| link of GPU 0, device to host | 256 MiB | 26.8 GB/s |  |  |",
		"| staged copies both ways | 64 MiB | 2.00 ms, 67.1 GB/s | 90% | the driver's staging 3.00 ms: 1.50x; NCCL over SHM 4.00 ms: 2.00x |",
		"| all_reduce of float32, 2 ranks (two_shot) | 1 MiB | 100.0 us, busbw 10.5 GB/s |  | NCCL over SHM 90.0 us: 0.90x; its best setting 80.0 us: 0.80x |",
	} {
		require.Contains(t, string(b), line+"\n")
	}
	require.NotContains(t, string(b), "8 ranks")
	require.NotContains(t, string(b), "16 KiB")
	require.NotContains(t, string(b), "2027-01-03", "what tests took by themselves, or on one of the cards")
}
