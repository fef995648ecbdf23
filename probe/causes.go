// SPDX-License-Identifier: Apache-2.0

package probe

// CauseID names a row of the verdict table. The names are stable: scripts may
// rely on them.
type CauseID string

// The causes. What each says is in Causes.
const (
	SameDevice     CauseID = "same-device"
	NoGPU          CauseID = "no-gpu"
	DeviceLost     CauseID = "device-lost"
	DriverMissing  CauseID = "driver-missing"
	StubLibrary    CauseID = "stub-library"
	MPS            CauseID = "mps"
	VersionSkew    CauseID = "version-mismatch"
	BadNode        CauseID = "device-node"
	CUDAUnusable   CauseID = "cuda-unusable"
	NVMLUnusable   CauseID = "nvml-unusable"
	ForeignDriver  CauseID = "foreign-driver"
	HiddenFromCUDA CauseID = "hidden-from-cuda"

	NVLinkOn     CauseID = "nvlink"
	P2POn        CauseID = "p2p-on"
	BadData      CauseID = "p2p-on-bad-data"
	Hangs        CauseID = "p2p-on-hang"
	EnableFails  CauseID = "p2p-on-enable-fails"
	NVMLDisagree CauseID = "nvml-disagrees"
	OneWay       CauseID = "one-way"
	GuestGrant   CauseID = "vm-grant"

	WDDM              CauseID = "wddm"
	WSL2              CauseID = "wsl2"
	VMGuest           CauseID = "vm-guest"
	MIG               CauseID = "mig"
	Confidential      CauseID = "confidential-compute"
	DifferentChips    CauseID = "different-chips"
	LibcudaRefusal    CauseID = "libcuda-refusal"
	IOHTopology       CauseID = "ioh-topology"
	RegistryKey       CauseID = "regkey"
	RegistrySeries    CauseID = "regkey-series"
	ProprietaryModule CauseID = "proprietary-module"
	NoOpenModule      CauseID = "no-open-module"
	BAR1Small         CauseID = "bar1-small"
	BAR1Firmware      CauseID = "bar1-small-firmware"
	BAR1Card          CauseID = "bar1-small-card"
	BAR1Tight         CauseID = "bar1-tight"
	IOMMUTranslating  CauseID = "iommu-translating"
	IOMMUUnread       CauseID = "iommu-unread"
	ACSRedirect       CauseID = "acs-redirect"
	DriverRefusal     CauseID = "driver-refusal"

	SameDie    CauseID = "same-chip-other-product"
	Display    CauseID = "display-attached"
	NarrowLink CauseID = "narrow-link"
	UnknownWhy CauseID = "unknown"
)

// Patch is the answer to "would the driver patch turn it on?". It is a
// prediction from a table of reports, never a promise.
type Patch string

// The answers, from the best to the worst.
const (
	PatchNotNeeded Patch = "not needed"
	PatchLikely    Patch = "likely helps"
	PatchAfter     Patch = "likely helps after other cures"
	PatchMaybe     Patch = "unknown"
	PatchNo        Patch = "does not help"
	PatchNever     Patch = "can never help"
	PatchNA        Patch = "does not apply"
)

// worst orders answers: of several causes of a pair the worst counts.
var worst = map[Patch]int{PatchNA: 0, PatchNotNeeded: 0, PatchLikely: 1, PatchAfter: 2, PatchMaybe: 3, PatchNo: 4, PatchNever: 5}

// A Kind is what a cause means for a pair.
type Kind string

// The kinds.
const (
	KindVerdict Kind = "verdict" // what the pair is, where nothing is in the way
	KindBlock   Kind = "block"   // keeps P2P off, or would as soon as the rest is cured
	KindRisk    Kind = "risk"    // P2P is granted, and data may be wrong
	KindNote    Kind = "note"    // worth knowing
)

// Cause is a row of the verdict table.
type Cause struct {
	ID       CauseID `json:"id"`
	Kind     Kind    `json:"kind"`
	Sentence string  `json:"sentence"`
	Short    string  `json:"short"` // for a verdict line
	Do       string  `json:"do,omitzero"`
	DoNot    string  `json:"do_not,omitzero"`
	Patch    Patch   `json:"patch"`
}

// Causes returns the verdict table, in the order in which causes are named.
func Causes() []Cause { return append([]Cause(nil), causes...) }

var causes = []Cause{
	{
		ID: SameDevice, Kind: KindVerdict, Patch: PatchNA,
		Short:    "one GPU",
		Sentence: "Both names are one GPU.",
	},
	{
		ID: NoGPU, Kind: KindBlock, Patch: PatchNA,
		Short:    "no GPU",
		Sentence: "No NVIDIA GPU was found, by CUDA, NVML or on the PCI bus.",
		Do:       "lspci -d 10de: shows what the bus sees. In a container or guest: was a GPU given to it?",
	},
	{
		ID: DeviceLost, Kind: KindBlock, Patch: PatchNo,
		Short:    "a GPU is lost",
		Sentence: "The GPU no longer answers: it has fallen off the bus or must be reset.",
		Do:       "dmesg | grep -i xid (79 is \"fallen off the bus\"); then power the host off and on, not only reboot; then check seat, riser, power cables and the card's temperature.",
		DoNot:    "reinstall or patch the driver for this: the other GPUs answer through the same one.",
	},
	{
		ID: DriverMissing, Kind: KindBlock, Patch: PatchNo,
		Short:    "no driver",
		Sentence: "The NVIDIA driver is not there: no library, or no kernel module under it.",
		Do:       "modprobe nvidia, and dmesg | grep -i nvrm if that fails; install the driver if there is none. In a container: start it with the NVIDIA runtime, which mounts the host's libraries.",
		DoNot:    "install a second driver inside a container: the version must be the host module's.",
	},
	{
		ID: StubLibrary, Kind: KindBlock, Patch: PatchNo,
		Short:    "stub library",
		Sentence: "The libcuda that was opened is the stub that a toolkit ships to link against, not a driver's.",
		Do:       "take the toolkit's stubs directory out of LD_LIBRARY_PATH and /etc/ld.so.conf.d, so that the driver's libcuda.so.1 is found.",
		DoNot:    "copy libcuda from elsewhere over it.",
	},
	{
		ID: MPS, Kind: KindBlock, Patch: PatchNo,
		Short:    "MPS does not answer",
		Sentence: "CUDA is told to go through the multi-process service (MPS), and its daemon does not answer.",
		Do:       "start it (nvidia-cuda-mps-control -d) with the same CUDA_MPS_PIPE_DIRECTORY, or unset that variable and remove the stale pipe directory. In a container: mount the pipe directory and share the host's IPC namespace.",
		DoNot:    "take this for a broken driver.",
	},
	{
		ID: VersionSkew, Kind: KindBlock, Patch: PatchNo,
		Short:    "versions differ",
		Sentence: "The kernel module and the user space libraries are of different versions.",
		Do:       "reboot if the driver was updated since the last boot; else install user space of exactly the module's version. With a patched module that is the version in the branch's name, to the last digit.",
		DoNot:    "build the patch first: it would be one more version.",
	},
	{
		ID: BadNode, Kind: KindBlock, Patch: PatchNo,
		Short:    "a device node is unusable",
		Sentence: "A device node that CUDA opens is missing, is not the driver's, or may not be opened.",
		Do:       "see the evidence for which node and why.",
		DoNot:    "write a major number of another host into a configuration: nvidia-uvm's is given out at boot, /proc/devices has it.",
	},
	{
		ID: CUDAUnusable, Kind: KindBlock, Patch: PatchNo,
		Short:    "CUDA does not start",
		Sentence: "libcuda is there and does not start.",
		Do:       "dmesg | grep -iE 'nvrm|xid'; nvidia-smi; modprobe nvidia-uvm.",
	},
	{
		ID: NVMLUnusable, Kind: KindNote, Patch: PatchNA,
		Short:    "NVML does not answer",
		Sentence: "NVML does not answer, so its facts are unknown. CUDA may go on working.",
		Do:       "in a container whose NVML worked before (\"Unknown Error\"): restart the container; a systemd daemon-reload on the host takes the devices away from it. Else install libnvidia-ml.so.1 of the module's version.",
		DoNot:    "take it for \"no GPU\".",
	},
	{
		ID: ForeignDriver, Kind: KindBlock, Patch: PatchNo,
		Short:    "another driver holds a GPU",
		Sentence: "The GPU is bound to another kernel driver, so NVIDIA's does not see it.",
		Do:       "for vfio-pci: take the GPU out of the guest's configuration and of vfio-pci.ids. For nouveau or nova_core: blacklist it, update the initramfs, reboot.",
		DoNot:    "unbind a GPU that a running guest uses.",
	},
	{
		ID: HiddenFromCUDA, Kind: KindBlock, Patch: PatchNA,
		Short:    "CUDA does not list a GPU",
		Sentence: "NVML or the PCI bus has the GPU, and CUDA of this process does not list it.",
		Do:       "unset CUDA_VISIBLE_DEVICES for the probe. An entry that names nothing hides every GPU after it too. Else look for the GPU's /dev/nvidiaN node and for its compute mode.",
	},

	{
		ID: BadData, Kind: KindVerdict, Patch: PatchNo,
		Short:    "on, but data arrive wrong",
		Sentence: "The driver grants P2P, and what a checked transfer wrote is not what arrived.",
		Do:       "use no P2P on this pair until it is cured (NCCL_P2P_DISABLE=1; gp's option P2P Off). Likely causes, in this order: an IOMMU that translates, ACS redirect on a bridge of the path, a display on a card with a static BAR1 mapping, a BAR1 that is not aligned to 512 MiB. dmesg | grep -iE 'xid|IO_PAGE_FAULT|DMAR' often says which.",
		DoNot:    "trust a connectivity matrix or a bandwidth test without a check of the data.",
	},
	{
		ID: Hangs, Kind: KindVerdict, Patch: PatchNo,
		Short:    "on, but a transfer does not end well",
		Sentence: "The driver grants P2P, and a transfer hung, failed or killed the process that made it.",
		Do:       "use no P2P on this pair (NCCL_P2P_DISABLE=1; gp's option P2P Off); save your work, read dmesg, reboot before the next try: the GPU may be stuck.",
		DoNot:    "start the job anyway: a hang like this has taken whole machines down.",
	},
	{
		ID: EnableFails, Kind: KindVerdict, Patch: PatchNo,
		Short:    "claimed, but refused when enabled",
		Sentence: "The driver says that access is possible and refuses when it is enabled.",
		Do:       "compare BAR1 with the memory of both cards and move a display to another card: both are known to end so with a patched driver. More than 8 peers of one GPU end so too.",
	},
	{
		ID: NVLinkOn, Kind: KindVerdict, Patch: PatchNotNeeded,
		Short:    "on (NVLink)",
		Sentence: "The GPUs are joined by NVLink and P2P goes over it.",
		DoNot:    "install the patch: its branches for 550 to 570 turn NVLink off.",
	},
	{
		ID: P2POn, Kind: KindVerdict, Patch: PatchNotNeeded,
		Short:    "on (PCIe)",
		Sentence: "The driver grants P2P over PCIe.",
		Do:       "gp probe --verify, once, before relying on it: the grant is no proof that data arrive.",
	},
	{
		ID: OneWay, Kind: KindNote, Patch: PatchNA,
		Short:    "the directions differ",
		Sentence: "The two directions of the pair do not agree.",
		Do:       "look at the card whose memory cannot be reached: a console or display on it takes the first part of its memory, and patched drivers then fail to align the mapping (dmesg: \"not aligned at 0x20000000\").",
	},
	{
		ID: GuestGrant, Kind: KindNote, Patch: PatchNA,
		Short:    "granted inside a guest",
		Sentence: "P2P is granted inside a virtual machine, where the hypervisor can grant what the hardware does not carry: the writer then reads its own bytes back and the owner sees zeros.",
		Do:       "gp probe --verify, which reads at the owner.",
	},

	{
		ID: WDDM, Kind: KindBlock, Patch: PatchNever,
		Short:    "WDDM",
		Sentence: "The GPU runs under Windows' display driver model (WDDM), which has no P2P.",
		Do:       "on cards that can: nvidia-smi -dm 1 (TCC) or MCDM. GeForce cards cannot: use Linux, or the staged copy.",
		DoNot:    "look for a patch: there is no kernel module to patch.",
	},
	{
		ID: WSL2, Kind: KindBlock, Patch: PatchNever,
		Short:    "WSL2",
		Sentence: "This is WSL2: the GPU is Windows', behind a paravirtual device. There is no PCI topology and no module here.",
		Do:       "boot Linux on the machine, or use the staged copy.",
		DoNot:    "install a Linux driver inside WSL2.",
	},
	{
		ID: VMGuest, Kind: KindBlock, Patch: PatchNo,
		Short:    "virtual machine",
		Sentence: "This is a virtual machine: the hypervisor, not this driver, decides about transfers between the GPUs.",
		Do:       "on the host: give both GPUs one GPUDirect clique (x-nv-gpudirect-clique of VFIO), with ACS on; then gp probe --verify in the guest, because a clique can grant what does not work.",
		DoNot:    "patch the guest's driver for this.",
	},
	{
		ID: MIG, Kind: KindBlock, Patch: PatchNo,
		Short:    "MIG",
		Sentence: "A GPU is split into MIG instances, between which there is no P2P.",
		Do:       "nvidia-smi -i N -mig 0, when nothing uses the instances.",
	},
	{
		ID: Confidential, Kind: KindBlock, Patch: PatchNo,
		Short:    "confidential computing",
		Sentence: "Confidential computing is on. How it treats P2P is not known here.",
		Do:       "ask the platform's documentation; compare with the mode off.",
	},
	{
		ID: DifferentChips, Kind: KindBlock, Patch: PatchNo,
		Short:    "different chips",
		Sentence: "The GPUs are of different chips, which the driver and libcuda do not pair, whatever NVML says.",
		Do:       "pair cards of one chip; between these use the staged copy.",
		DoNot:    "install the patch for this pair, or edit libcuda.",
	},
	{
		ID: LibcudaRefusal, Kind: KindBlock, Patch: PatchNo,
		Short:    "libcuda refuses",
		Sentence: "NVML says that P2P is supported and libcuda refuses it, though both GPUs are of one chip.",
		Do:       "reload the modules or reboot if the driver was changed since boot; compare the versions of libcuda and the module.",
	},
	{
		ID: IOHTopology, Kind: KindBlock, Patch: PatchNo,
		Short:    "different I/O hubs",
		Sentence: "The GPUs hang on different Intel I/O hubs, across which the driver denies P2P.",
		Do:       "move both cards to slots of one hub or processor.",
	},
	{
		ID: RegistryKey, Kind: KindBlock, Patch: PatchAfter,
		Short:    "switched off by a registry key",
		Sentence: "A registry key of the driver switches P2P off.",
		Do:       "take ForceP2P out of RegistryDwords (grep -r RegistryDwords /etc/modprobe.d), update the initramfs, reboot.",
		DoNot:    "guess values: each capability has two bits of ForceP2P (read 1:0, write 5:4, atomics 9:8), and 0 means disabled, not default.",
	},
	{
		ID: RegistrySeries, Kind: KindNote, Patch: PatchNA,
		Short:    "registry key of another series",
		Sentence: "RMForceP2PType is set, whose values changed their meaning at 575: up to 570, 1 is mailbox, 2 BAR1, 3 NVLink, 4 C2C; from 575 on, 1 is PCIe, 2 NVLink, 3 C2C, and RMPcieP2PType (0 mailbox, 1 BAR1, 2 auto) says which PCIe.",
		Do:       "compare the value with the installed series; take the key out if it came from a recipe for another one.",
	},
	{
		ID: ProprietaryModule, Kind: KindBlock, Patch: PatchAfter,
		Short:    "proprietary module",
		Sentence: "The kernel module is the proprietary one, whose source cannot be patched.",
		Do:       "to use the patch, install the open kernel modules of a version that has a branch.",
		DoNot:    "expect P2P from the stock open modules alone: they refuse GeForce pairs as well.",
	},
	{
		ID: NoOpenModule, Kind: KindBlock, Patch: PatchNever,
		Short:    "no open module for the chip",
		Sentence: "The open kernel modules do not support this chip, so there is nothing to patch.",
		Do:       "use the staged copy.",
	},
	{
		ID: BAR1Small, Kind: KindBlock, Patch: PatchAfter,
		Short:    "BAR1 smaller than the memory",
		Sentence: "BAR1, the window through which a peer reaches the memory, is smaller than the memory. The card can have a larger one.",
		Do:       "the patched driver resizes it by itself when it loads; a stock one does with NVreg_EnableResizableBar=1. Either needs \"Above 4G decoding\" and \"Resizable BAR\" on in the firmware, so that the bridges have room. Check: nvidia-smi -q | grep -A3 BAR1.",
		DoNot:    "flash a vBIOS for this: the card already offers the size.",
	},
	{
		ID: BAR1Firmware, Kind: KindBlock, Patch: PatchAfter,
		Short:    "BAR1 smaller than the memory, and not resizable here",
		Sentence: "BAR1, the window through which a peer reaches the memory, is smaller than the memory, and the card offers no other size.",
		Do:       "first the firmware: \"Above 4G decoding\" and \"Resizable BAR\" on, newest mainboard firmware. If the card still offers no sizes (lspci -vvv shows no \"Resizable BAR\"): the card maker's vBIOS update for Resizable BAR. Only then the patch.",
		DoNot:    "patch first: neither driver nor patch can resize what the card does not offer.",
	},
	{
		ID: BAR1Card, Kind: KindBlock, Patch: PatchNo,
		Short:    "the card's largest BAR1 is smaller than its memory",
		Sentence: "The largest BAR1 that the card can have is smaller than its memory.",
		Do:       "use the staged copy. For 4090s rebuilt with 48 GB one person publishes special branches (named -48g); nothing else is known to help.",
		DoNot:    "look for Resizable BAR in the firmware: the card is at its limit.",
	},
	{
		ID: BAR1Tight, Kind: KindNote, Patch: PatchNA,
		Short:    "BAR1 is tight",
		Sentence: "BAR1 is hardly larger than the memory. A mapping of all of it may miss by some MiB.",
		Do:       "if the patched driver says \"BAR1 not large enough\" or leaves P2P off: free the rest of BAR1 (no display on the card), and see PATCH.md on 16 GB cards.",
	},
	{
		ID: IOMMUTranslating, Kind: KindRisk, Patch: PatchAfter,
		Short:    "the IOMMU translates",
		Sentence: "The IOMMU translates the addresses of a GPU. Peer transfers then end in zeros, wrong data or faults, also where the driver grants P2P.",
		Do:       "iommu=pt on the kernel command line (with intel_iommu=on or amd_iommu=on), or the IOMMU off in the firmware; then reboot and look at /sys/kernel/iommu_groups/*/type: it must say identity, or the directory be empty.",
		DoNot:    "use P2P before: data can be wrong without any error.",
	},
	{
		ID: IOMMUUnread, Kind: KindRisk, Patch: PatchAfter,
		Short:    "the IOMMU could not be read",
		Sentence: "Whether an IOMMU translates the addresses of a GPU could not be read. If it does, the patch alone gives wrong data.",
		Do:       "look at /sys/kernel/iommu_groups/*/type as root on the host, outside any container: it must say identity, or the directory be empty.",
		DoNot:    "install the patch before this is known.",
	},
	{
		ID: NVMLDisagree, Kind: KindRisk, Patch: PatchNotNeeded,
		Short:    "NVML disagrees",
		Sentence: "CUDA grants P2P and NVML says that it is not supported.",
		Do:       "gp probe --verify decides.",
	},
	{
		ID: ACSRedirect, Kind: KindNote, Patch: PatchNA,
		Short:    "ACS redirects",
		Sentence: "A bridge of the path sends peer traffic up to the root complex (ACS redirect): slower, and wrong with an IOMMU that translates.",
		Do:       "switch ACS off in the firmware, or pci=disable_acs_redir=BUS on the kernel command line, or setpci -s BUS ECAP_ACS+0x6.w=0 until the next boot.",
		DoNot:    "do so on a host that passes devices to guests: it takes their isolation away.",
	},
	{
		ID: DriverRefusal, Kind: KindBlock, Patch: PatchLikely,
		Short:    "the driver refuses",
		Sentence: "Nothing that was read of the machine is in the way: the stock driver refuses P2P for these cards.",
		Do:       "read PATCH.md; or use the staged copy, which needs no patch.",
		DoNot:    "change firmware, slots or kernel options for this: what was read of them is as the patch needs it.",
	},

	{
		ID: SameDie, Kind: KindNote, Patch: PatchMaybe,
		Short:    "two products of one chip",
		Sentence: "The cards are different products of one chip. Reports disagree on whether such pairs work.",
		Do:       "try it, and believe only gp probe --verify.",
	},
	{
		ID: Display, Kind: KindNote, Patch: PatchNA,
		Short:    "a display is attached",
		Sentence: "A display is attached to the GPU. With a patched driver it takes part of what peers map: wrong data, one-way pairs and a mangled picture are reported.",
		Do:       "drive the display with another GPU, or run the host without one.",
	},
	{
		ID: NarrowLink, Kind: KindNote, Patch: PatchNA,
		Short:    "a narrow link",
		Sentence: "The slot gives the GPU fewer lanes or a lower generation than the card has, and that bounds every transfer, staged or P2P.",
		Do:       "another slot, riser or firmware setting; a slot behind the chipset is also shared with other devices.",
	},
	{
		ID: UnknownWhy, Kind: KindBlock, Patch: PatchMaybe,
		Short:    "the reason is not known",
		Sentence: "What could be read does not decide.",
		Do:       "see the list of what could not be read; often it helps to run the probe as root and outside of containers.",
	},
}

var causeIndex = func() map[CauseID]int {
	m := make(map[CauseID]int, len(causes))
	for i, c := range causes {
		m[c.ID] = i
	}
	return m
}()
