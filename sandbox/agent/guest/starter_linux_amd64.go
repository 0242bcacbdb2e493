package guest

import "encoding/binary"

// starterCode makes its process the reaper of its own orphans and becomes the program that its arguments name. That mark is
// the process's own: it stays over execve, and nothing that a program does to its environment, session or parents takes a
// descendant out of the tree below it. There is no other moment to set it, and a program of Go's would take as long to start as
// the command itself.
var starterCode = []byte{
	0xb8, 0x9d, 0x00, 0x00, 0x00, // mov eax, 157 (prctl)
	0xbf, 0x24, 0x00, 0x00, 0x00, // mov edi, 36 (PR_SET_CHILD_SUBREAPER)
	0xbe, 0x01, 0x00, 0x00, 0x00, // mov esi, 1
	0x31, 0xd2, // xor edx, edx
	0x4d, 0x31, 0xd2, // xor r10, r10
	0x4d, 0x31, 0xc0, // xor r8, r8
	0x0f, 0x05, // syscall
	0x48, 0x8b, 0x7c, 0x24, 0x10, // mov rdi, [rsp+16]: argv[1], the program
	0x48, 0x8d, 0x74, 0x24, 0x18, // lea rsi, [rsp+24]: its arguments, from argv[2] on
	0x48, 0x8b, 0x0c, 0x24, // mov rcx, [rsp]: argc
	0x48, 0x8d, 0x54, 0xcc, 0x10, // lea rdx, [rsp+rcx*8+16]: the environment
	0xb8, 0x3b, 0x00, 0x00, 0x00, // mov eax, 59 (execve)
	0x0f, 0x05, // syscall
	0xbf, 0x7e, 0x00, 0x00, 0x00, // mov edi, 126
	0x83, 0xf8, 0xfe, // cmp eax, -2 (ENOENT)
	0x75, 0x02, // jne over the next
	0xff, 0xc7, // inc edi: 127, as a shell has it
	0xb8, 0x3c, 0x00, 0x00, 0x00, // mov eax, 60 (exit)
	0x0f, 0x05, // syscall
}

// starterProgram is the code as an ELF executable of one segment.
func starterProgram() []byte {
	const base, header, segment = 0x400000, 64, 56
	size := uint64(header + segment + len(starterCode))
	le := binary.LittleEndian
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	b = le.AppendUint16(b, 2)  // an executable
	b = le.AppendUint16(b, 62) // of x86-64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+header+segment) // where it begins
	b = le.AppendUint64(b, header)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, n := range []uint16{header, segment, 1, 0, 0, 0} {
		b = le.AppendUint16(b, n)
	}
	b = le.AppendUint32(b, 1) // to be loaded
	b = le.AppendUint32(b, 5) // readable and executable
	for _, n := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, n)
	}
	return append(b, starterCode...)
}
