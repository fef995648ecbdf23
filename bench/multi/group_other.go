// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import "os/exec"

func ownGroup(*exec.Cmd) {}

// interruptGroup ends a program at once: there is no signal to ask it with.
func interruptGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
