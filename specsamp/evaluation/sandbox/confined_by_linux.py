"""What Linux itself refuses a process from now on."""

import ctypes
import os
import signal
import sys

# System calls that end a program: numbers on x86_64 and aarch64, or None. Those
# of chmod and the like are here as Landlock leaves them alone.
_SYSTEM_CALLS = {
  **dict(fork=(57, None), vfork=(58, None), execve=(59, 221)),
  **dict(execveat=(322, 281), ptrace=(101, 117), kill=(62, 129)),
  **dict(tkill=(200, 130), tgkill=(234, 131), rt_sigqueueinfo=(129, 138)),
  **dict(rt_tgsigqueueinfo=(297, 240), pidfd_send_signal=(424, 424)),
  **dict(pidfd_open=(434, 434), pidfd_getfd=(438, 438), setsid=(112, 157)),
  **dict(setpgid=(109, 154), process_vm_readv=(310, 270)),
  **dict(process_vm_writev=(311, 271), socket=(41, 198), socketpair=(53, 199)),
  **dict(io_uring_setup=(425, 425), bpf=(321, 280), unshare=(272, 97)),
  **dict(
    setns=(308, 268), mount=(165, 40), umount2=(166, 39), chroot=(161, 51)
  ),
  **dict(mknod=(133, None), mknodat=(259, 33), chmod=(90, None)),
  **dict(fchmod=(91, 52), fchmodat=(268, 53), fchmodat2=(452, 452)),
  **dict(chown=(92, None), lchown=(94, None), fchown=(93, 55)),
  **dict(fchownat=(260, 54), setxattr=(188, 5), lsetxattr=(189, 6)),
  **dict(fsetxattr=(190, 7), shmget=(29, 194), msgget=(68, 186)),
  **dict(semget=(64, 190), mq_open=(240, 180)),
}
_CLONE = {'x86_64': 56, 'aarch64': 220}
_CLONE3 = 435
_ARCHITECTURES = {'x86_64': 0xC000003E, 'aarch64': 0xC00000B7}


def confine(folder: str):
  """Has Linux refuse writes outside and most of what reaches other processes.

  Each step is absent where the kernel does not offer it.
  """
  libc = ctypes.CDLL(None)
  # Each arena of a thread would take 64 MiB of the address space.
  getattr(libc, 'mallopt', lambda *_: None)(-8, 1)  # M_ARENA_MAX
  libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
  if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
    return
  _landlock(libc, folder)
  _filter_system_calls(libc)


def _landlock(libc, folder: str):
  long = ctypes.c_long
  version = libc.syscall(long(444), None, long(0), long(1))
  if version < 1:
    return
  remove, make_file, refer, truncate = 1 << 5, 1 << 8, 1 << 13, 1 << 14
  write = 1 << 1 | (truncate if version >= 3 else 0)
  # Execution, and all that changes folders, are handled; reading is not.
  handled = write | (1 << 13) - 1 & ~0b1100 | (refer if version >= 2 else 0)
  attribute = ctypes.c_uint64(handled)
  rules = libc.syscall(long(444), ctypes.byref(attribute), long(8), long(0))
  for path, rights in (
    (folder, write | remove | make_file),
    (os.devnull, write),
  ):
    descriptor = os.open(path, os.O_PATH)
    rule = rights.to_bytes(8, sys.byteorder) + descriptor.to_bytes(
      4, sys.byteorder
    )
    libc.syscall(long(445), long(rules), long(1), rule, long(0))
    os.close(descriptor)
  libc.syscall(long(446), long(rules), long(0))
  os.close(rules)


def _filter_system_calls(libc):
  machine = os.uname().machine
  if machine not in _ARCHITECTURES or sys.maxsize < 1 << 32:
    return
  numbers = [
    pair[machine == 'aarch64']
    for pair in _SYSTEM_CALLS.values()
    if pair[machine == 'aarch64'] is not None
  ]
  load, equal, at_least, any_bit, result = 0x20, 0x15, 0x35, 0x45, 0x06
  kill, allow, no_such_call = 0x80000000, 0x7FFF0000, 0x00050000 | 38
  thread = 0x10000
  steps = [  # what, if so skip, if not skip, value
    (load, 0, 0, 4),  # the architecture
    (equal, 1, 0, _ARCHITECTURES[machine]),
    (result, 0, 0, kill),
    (load, 0, 0, 0),  # the number
    (at_least, 0, 1, 0x40000000),  # x32
    (result, 0, 0, kill),
    (equal, 0, 1, _CLONE3),  # libc then calls clone
    (result, 0, 0, no_such_call),
  ]
  for number in numbers:
    steps += [(equal, 0, 1, number), (result, 0, 0, kill)]
  steps += [
    (equal, 0, 3, _CLONE[machine]),
    (load, 0, 0, 16),  # the lower half of its flags
    (any_bit, 1, 0, thread),
    (result, 0, 0, kill),
    (result, 0, 0, allow),
  ]
  packed = b''.join(
    code.to_bytes(2, 'little') + bytes((yes, no)) + value.to_bytes(4, 'little')
    for code, yes, no, value in steps
  )

  class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('steps', ctypes.c_char_p)]

  program = Program(len(steps), packed)
  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
  libc.prctl(22, 2, ctypes.byref(program), 0, 0)
