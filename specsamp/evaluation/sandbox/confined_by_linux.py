"""What Linux itself refuses a process from now on."""

import ctypes
import os
import signal
import struct

_MACHINES = ('x86_64', 'aarch64')
_ARCHITECTURES = (0xC000003E, 0xC00000B7)
_CLONE = (56, 220)
_CLONE3 = 435
# System calls that end a program: their numbers on these machines. Those of
# chmod and the like are here as Landlock leaves them alone.
# fmt: off
_SYSTEM_CALLS = {
  'fork': (57, None), 'vfork': (58, None), 'execve': (59, 221),
  'execveat': (322, 281), 'ptrace': (101, 117), 'kill': (62, 129),
  'tkill': (200, 130), 'tgkill': (234, 131), 'rt_sigqueueinfo': (129, 138),
  'rt_tgsigqueueinfo': (297, 240), 'pidfd_send_signal': (424, 424),
  'pidfd_open': (434, 434), 'pidfd_getfd': (438, 438), 'setsid': (112, 157),
  'setpgid': (109, 154), 'process_vm_readv': (310, 270),
  'process_vm_writev': (311, 271), 'socket': (41, 198),
  'socketpair': (53, 199), 'io_uring_setup': (425, 425), 'bpf': (321, 280),
  'unshare': (272, 97), 'setns': (308, 268), 'mount': (165, 40),
  'umount2': (166, 39), 'chroot': (161, 51), 'mknod': (133, None),
  'mknodat': (259, 33), 'chmod': (90, None), 'fchmod': (91, 52),
  'fchmodat': (268, 53), 'fchmodat2': (452, 452), 'chown': (92, None),
  'lchown': (94, None), 'fchown': (93, 55), 'fchownat': (260, 54),
  'setxattr': (188, 5), 'lsetxattr': (189, 6), 'fsetxattr': (190, 7),
  'shmget': (29, 194), 'msgget': (68, 186), 'semget': (64, 190),
  'mq_open': (240, 180),
}
# fmt: on


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
  # Execution, and all that changes folders, are handled; reading is not. A
  # second version has one right more (refer), a third another (truncate).
  handled = (1 << min(12 + version, 15)) - 1 & ~0b1100
  write, remove, make_file = 1 << 14 | 1 << 1, 1 << 5, 1 << 8
  rules = libc.syscall(long(444), struct.pack('Q', handled), long(8), long(0))
  for path, rights in (
    (folder, write | remove | make_file),
    (os.devnull, write),
  ):
    descriptor = os.open(path, os.O_PATH)
    rule = struct.pack('=Qi', rights & handled, descriptor)
    libc.syscall(long(445), long(rules), long(1), rule, long(0))
    os.close(descriptor)
  libc.syscall(long(446), long(rules), long(0))
  os.close(rules)


def _filter_system_calls(libc):
  machine = os.uname().machine
  if machine not in _MACHINES:
    return
  at = _MACHINES.index(machine)
  load, equal, at_least, any_bit, result = 0x20, 0x15, 0x35, 0x45, 0x06
  kill, allow, no_such_call = 0x80000000, 0x7FFF0000, 0x00050000 | 38
  thread = 0x10000
  steps = [  # what, if so skip, if not skip, value
    (load, 0, 0, 4),  # the architecture
    (equal, 1, 0, _ARCHITECTURES[at]),
    (result, 0, 0, kill),
    (load, 0, 0, 0),  # the number
    (at_least, 0, 1, 0x40000000),  # x32
    (result, 0, 0, kill),
    (equal, 0, 1, _CLONE3),  # libc then calls clone
    (result, 0, 0, no_such_call),
  ]
  for numbers in _SYSTEM_CALLS.values():
    if numbers[at] is not None:
      steps += [(equal, 0, 1, numbers[at]), (result, 0, 0, kill)]
  steps += [
    (equal, 0, 3, _CLONE[at]),
    (load, 0, 0, 16),  # the lower half of its flags
    (any_bit, 1, 0, thread),
    (result, 0, 0, kill),
    (result, 0, 0, allow),
  ]
  packed = b''.join(struct.pack('HBBI', *step) for step in steps)
  buffer = ctypes.create_string_buffer(packed)
  program = struct.pack('HP', len(steps), ctypes.addressof(buffer))
  libc.prctl(22, 2, program, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
