package guest

import "encoding/binary"

// starterCode makes its process the reaper of its own orphans and becomes the program that its arguments name. That mark is
// the process's own: it stays over execve, and nothing that a program does to its environment, session or parents takes a
// descendant out of the tree below it. There is no other moment to set it, and a program of Go's would take as long to start as
// the command itself. Without arguments it waits for them on descriptor 3, in the form that image gives them, and ends when
// there come none.
var starterCode = []byte{
	0xb8, 0x9d, 0x00, 0x00, 0x00, // mov eax, 157 (prctl)
	0xbf, 0x24, 0x00, 0x00, 0x00, // mov edi, 36 (PR_SET_CHILD_SUBREAPER)
	0xbe, 0x01, 0x00, 0x00, 0x00, // mov esi, 1
	0x31, 0xd2, // xor edx, edx
	0x4d, 0x31, 0xd2, // xor r10, r10
	0x4d, 0x31, 0xc0, // xor r8, r8
	0x0f, 0x05, // syscall
	0x48, 0x8b, 0x0c, 0x24, // mov rcx, [rsp]: argc
	0x83, 0xf9, 0x01, // cmp ecx, 1
	0x74, 0x24, // je wait
	0x48, 0x8b, 0x7c, 0x24, 0x10, // mov rdi, [rsp+16]: argv[1], the program
	0x48, 0x8d, 0x74, 0x24, 0x18, // lea rsi, [rsp+24]: its arguments, from argv[2] on
	0x48, 0x8d, 0x54, 0xcc, 0x10, // lea rdx, [rsp+rcx*8+16]: the environment
	// become:
	0xb8, 0x3b, 0x00, 0x00, 0x00, // mov eax, 59 (execve)
	0x0f, 0x05, // syscall
	0xbf, 0x7e, 0x00, 0x00, 0x00, // mov edi, 126
	0x83, 0xf8, 0xfe, // cmp eax, -2 (ENOENT)
	0x75, 0x6d, // jne quit
	0xff, 0xc7, // inc edi: 127, as a shell has it
	0xeb, 0x69, // jmp quit
	// wait:
	0xb8, 0x48, 0x00, 0x00, 0x00, // mov eax, 72 (fcntl)
	0xbf, 0x03, 0x00, 0x00, 0x00, // mov edi, 3
	0xbe, 0x02, 0x00, 0x00, 0x00, // mov esi, 2 (F_SETFD)
	0xba, 0x01, 0x00, 0x00, 0x00, // mov edx, 1 (FD_CLOEXEC)
	0x0f, 0x05, // syscall
	0xbb, 0x00, 0x00, 0x60, 0x00, // mov ebx, imageBase
	0x31, 0xed, // xor ebp, ebp: bytes that came
	// more:
	0x31, 0xc0, // xor eax, eax (read)
	0xbf, 0x03, 0x00, 0x00, 0x00, // mov edi, 3
	0x48, 0x8d, 0x34, 0x2b, // lea rsi, [rbx+rbp]
	0xba, 0x00, 0x00, 0x01, 0x00, // mov edx, imageMost
	0x29, 0xea, // sub edx, ebp
	0x0f, 0x05, // syscall
	0x83, 0xf8, 0xfc, // cmp eax, -4 (EINTR)
	0x74, 0xe7, // je more
	0x31, 0xff, // xor edi, edi
	0x85, 0xc0, // test eax, eax
	0x7e, 0x2d, // jle quit
	0x01, 0xc5, // add ebp, eax
	0x83, 0xfd, 0x08, // cmp ebp, 8
	0x72, 0xda, // jb more
	0x3b, 0x2b, // cmp ebp, [rbx]: the image's size
	0x72, 0xd6, // jb more
	0x48, 0x8b, 0x7b, 0x08, // mov rdi, [rbx+8]: the directory
	0xb8, 0x50, 0x00, 0x00, 0x00, // mov eax, 80 (chdir)
	0x0f, 0x05, // syscall
	0xbf, 0x7e, 0x00, 0x00, 0x00, // mov edi, 126
	0x85, 0xc0, // test eax, eax
	0x75, 0x0e, // jne quit
	0x48, 0x8b, 0x7b, 0x10, // mov rdi, [rbx+16]: the program
	0x48, 0x8b, 0x73, 0x18, // mov rsi, [rbx+24]: its arguments
	0x48, 0x8b, 0x53, 0x20, // mov rdx, [rbx+32]: the environment
	0xeb, 0x82, // jmp become
	// quit:
	0xb8, 0xe7, 0x00, 0x00, 0x00, // mov eax, 231 (exit_group)
	0x0f, 0x05, // syscall
}

// Where the starter that waits reads to, and how much.
const (
	imageBase = 0x600000
	imageMost = 64 << 10
)

// image is what the starter that waits is told: sizes and addresses of what follows, the lists of addresses, the texts. nil
// when it is too long.
func image(dir, path string, argv, env []string) []byte {
	const head = 5 * 8
	texts := head + 8*(len(argv)+1+len(env)+1)
	size := texts + len(dir) + 1 + len(path) + 1
	for _, list := range [][]string{argv, env} {
		for _, s := range list {
			size += len(s) + 1
		}
	}
	if size > imageMost {
		return nil
	}
	le := binary.LittleEndian
	b := make([]byte, texts, size)
	text := func(s string) uint64 {
		at := imageBase + uint64(len(b))
		b = append(append(b, s...), 0)
		return at
	}
	at := head
	list := func(all []string) uint64 {
		begin := imageBase + uint64(at)
		for _, s := range all {
			le.PutUint64(b[at:], text(s))
			at += 8
		}
		at += 8 // the zero that ends it
		return begin
	}
	le.PutUint64(b, uint64(size))
	le.PutUint64(b[8:], text(dir))
	le.PutUint64(b[16:], text(path))
	le.PutUint64(b[24:], list(argv))
	le.PutUint64(b[32:], list(env))
	return b
}

// starterProgram is the code as an ELF executable of two segments: itself, and memory for an image.
func starterProgram() []byte {
	const base, header, segment = 0x400000, 64, 56
	begin := uint64(header + 2*segment)
	size := begin + uint64(len(starterCode))
	le := binary.LittleEndian
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	b = le.AppendUint16(b, 2)  // an executable
	b = le.AppendUint16(b, 62) // of x86-64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+begin) // where it begins
	b = le.AppendUint64(b, header)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, n := range []uint16{header, segment, 2, 0, 0, 0} {
		b = le.AppendUint16(b, n)
	}
	for _, s := range []struct {
		flags                  uint32
		at, fromFile, inMemory uint64
	}{
		{5, base, size, size},        // readable and executable
		{6, imageBase, 0, imageMost}, // readable and writable
	} {
		b = le.AppendUint32(b, 1) // to be loaded
		b = le.AppendUint32(b, s.flags)
		for _, n := range []uint64{0, s.at, s.at, s.fromFile, s.inMemory, 0x1000} {
			b = le.AppendUint64(b, n)
		}
	}
	return append(b, starterCode...)
}
