// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io/fs"
	"syscall"
)

// deviceNumber is the numbers of a device node; 0, 0 if the file system does not
// tell.
func deviceNumber(info fs.FileInfo) (major, minor int) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0
	}
	dev := uint64(st.Rdev)
	return int(dev>>8&0xfff | dev>>32&^uint64(0xfff)), int(dev&0xff | dev>>12&^uint64(0xff))
}

// openNode opens and closes a device node. Not through package os: that would
// put the descriptor under the runtime's poller.
func openNode(path string) error {
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}
