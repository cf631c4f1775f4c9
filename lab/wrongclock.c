/* Completes libfaketime, which does not change the times of files as programs of today ask for them.
   Shifts them by WRONG_CLOCK_S seconds, as the file system of a node with that clock would. */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long shift_s;

__attribute__((constructor)) static void begin(void) {
  const char *told = getenv("WRONG_CLOCK_S");
  shift_s = told ? atol(told) : 0;
}

static int shifted(int result, struct stat64 *found) {
  if (result == 0) {
    found->st_atim.tv_sec += shift_s;
    found->st_mtim.tv_sec += shift_s;
    found->st_ctim.tv_sec += shift_s;
  }
  return result;
}

int stat64(const char *path, struct stat64 *found) {
  static int (*next)(const char *, struct stat64 *);
  if (!next) next = dlsym(RTLD_NEXT, "stat64");
  return shifted(next(path, found), found);
}

int lstat64(const char *path, struct stat64 *found) {
  static int (*next)(const char *, struct stat64 *);
  if (!next) next = dlsym(RTLD_NEXT, "lstat64");
  return shifted(next(path, found), found);
}

int fstat64(int file, struct stat64 *found) {
  static int (*next)(int, struct stat64 *);
  if (!next) next = dlsym(RTLD_NEXT, "fstat64");
  return shifted(next(file, found), found);
}

int fstatat64(int folder, const char *path, struct stat64 *found, int flags) {
  static int (*next)(int, const char *, struct stat64 *, int);
  if (!next) next = dlsym(RTLD_NEXT, "fstatat64");
  return shifted(next(folder, path, found, flags), found);
}

/* libfaketime shifts the end of a sleep even if it leaves the monotonic clock alone. With a clock that
   is behind, a short sleep would end before it began: EINVAL. */
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
  if (clock == CLOCK_MONOTONIC)
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) ? errno : 0;
  static int (*next)(clockid_t, int, const struct timespec *, struct timespec *);
  if (!next) next = dlsym(RTLD_NEXT, "clock_nanosleep");
  return next(clock, flags, until, left);
}
