/* libfaketime's neighbour: it leaves the calls alone by which programs of today ask for the times of
   a file. Shifts them by WRONG_CLOCK_S seconds, as the file system of a node with that clock would. */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

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
