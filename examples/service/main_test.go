// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The service as a process, on a simulated machine: it answers, and on SIGTERM it
// tells so, goes on answering, and ends well.
func TestService(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "service")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(binary, "-sim", "2x4090", "-listen", "localhost:0", "-grace", "1s")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	defer func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	lines := bufio.NewScanner(stderr)
	next := func(msg string) (line map[string]any) {
		t.Helper()
		for lines.Scan() {
			line = nil
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				t.Fatalf("%v: %s", err, lines.Text())
			}
			if line["msg"] == msg {
				return line
			}
		}
		t.Fatalf("it ended without %q", msg)
		return nil
	}
	address, _ := next("serving")["address"].(string)
	get := func(path string, want int) string {
		t.Helper()
		client := http.Client{Timeout: 10 * time.Second}
		r, err := client.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != want {
			t.Fatalf("GET %s: %d, %v: %s", path, r.StatusCode, err, body)
		}
		return string(body)
	}

	var report struct{ Pairs []struct{ State string } }
	body := get("/probe", http.StatusOK)
	if err := json.Unmarshal([]byte(body), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Pairs) != 2 || report.Pairs[0].State != "off" || !strings.Contains(body, "driver-refusal") {
		t.Fatalf("report: %s", body)
	}
	get("/healthz", http.StatusOK)
	if stats := get("/stats", http.StatusOK); !strings.Contains(stats, `"PinnedBytes":67108864`) {
		t.Fatalf("stats: %s", stats)
	}
	get("/nothing", http.StatusNotFound)

	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	next("draining")
	if why := get("/healthz", http.StatusServiceUnavailable); !strings.Contains(why, "draining") {
		t.Fatalf("health: %s", why)
	}
	get("/probe", http.StatusOK)
	next("closing")
	ended = true
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}
