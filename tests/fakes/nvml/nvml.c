/* libnvidia-ml.so.1 for machines without a GPU: the calls that Lattice makes, answered from a text
   file, so that the real Python binding runs on it with all of its errors.

   The file is named by NVML_STATE and read again whenever it changes. One fact a line:

     init 9                     nvmlInit answers with this code (9: driver not loaded)
     hang 30                    every call waits for so many seconds first
     gpus 8                     how many cards there are
     gpu 0 minor 3              of the card with NVML's index 0; `gpu *` is every card
     gpu 0 power error:4        the call answers with this code
     gpu 0 energy ~250000       grows by so much a second
     gpu 0 lost 1               every call about it answers "GPU is lost"
     mig 0 1 uuid MIG-...       of the instance with the index 1 on card 0
     gpu 0 nvlink_up_3 0        of its NVLink 3 alone
     gpu * events_lost 1        waiting for events fails until the set is made anew
     xid 0 79                   an event of card 0; each line is told once, until there is none

   The last line that fits is the one that holds. What has no line is not supported. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  TIMEOUT = 10,
  GPU_IS_LOST = 15
};
enum { MOST_FACTS = 4096, MOST_CARDS = 64, MOST_INSTANCES = 8, EVERY = -1, NONE = -2 };

struct fact {
  int card, instance;
  char key[32], value[96];
};
struct device {
  int card, instance;
};

static struct fact facts[MOST_FACTS];
static int fact_count, init_code, hang_s, card_count, started, sets_freed;
static struct timespec read_at;
static off_t read_size = -1;
static int xids[MOST_FACTS][2], xid_count, xid_told;
static struct device devices[MOST_CARDS][MOST_INSTANCES + 1];

static void take(const char *line) {
  struct fact *fact = &facts[fact_count];
  char card[16];
  int value;
  if (sscanf(line, "init %d", &value) == 1) init_code = value;
  else if (sscanf(line, "hang %d", &value) == 1) hang_s = value;
  else if (sscanf(line, "gpus %d", &value) == 1) card_count = value < MOST_CARDS ? value : MOST_CARDS;
  else if (xid_count < MOST_FACTS &&
           sscanf(line, "xid %d %d", &xids[xid_count][0], &xids[xid_count][1]) == 2) xid_count++;
  else if (fact_count < MOST_FACTS &&
           sscanf(line, "mig %d %d %31s %95[^\n]", &fact->card, &fact->instance, fact->key,
                  fact->value) == 4) fact_count++;
  else if (fact_count < MOST_FACTS &&
           sscanf(line, "gpu %15s %31s %95[^\n]", card, fact->key, fact->value) == 3) {
    fact->card = card[0] == '*' ? EVERY : atoi(card);
    fact->instance = NONE;
    fact_count++;
  }
}

static void refresh(void) {
  const char *path = getenv("NVML_STATE");
  struct stat found;
  char line[256];
  if (!path || stat(path, &found)) return;
  if (found.st_size == read_size && found.st_mtim.tv_sec == read_at.tv_sec &&
      found.st_mtim.tv_nsec == read_at.tv_nsec) return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  read_size = found.st_size;
  read_at = found.st_mtim;
  fact_count = init_code = hang_s = card_count = xid_count = 0;
  while (fgets(line, sizeof line, file)) take(line);
  fclose(file);
  if (!xid_count) xid_told = sets_freed = 0;
}

static int begin(void) {
  refresh();
  if (hang_s) sleep(hang_s);
  return started ? SUCCESS : UNINITIALIZED;
}

static const char *fact_of(const struct device *device, const char *key) {
  const char *value = NULL;
  for (int i = 0; i < fact_count; i++) {
    int same = facts[i].instance == device->instance &&
               (facts[i].card == device->card ||
                (facts[i].card == EVERY && device->instance == NONE));
    if (same && !strcmp(facts[i].key, key)) value = facts[i].value;
  }
  return value;
}

static int answer(const struct device *device, const char *key, const char **value) {
  int code = begin();
  if (code) return code;
  if (!device) return INVALID_ARGUMENT;
  const struct device card = {device->card, NONE};
  const char *lost = fact_of(&card, "lost");
  if (lost && atoi(lost)) return GPU_IS_LOST;
  *value = fact_of(device, key);
  if (!*value) return NOT_SUPPORTED;
  return strncmp(*value, "error:", 6) ? SUCCESS : atoi(*value + 6);
}

static int whole(const struct device *device, const char *key, unsigned long long *number) {
  const char *value;
  int code = answer(device, key, &value);
  if (code) return code;
  if (*value == '~') {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *number = (unsigned long long)(strtod(value + 1, NULL) * (now.tv_sec + now.tv_nsec / 1e9));
  } else {
    *number = strtoull(value, NULL, 0);
  }
  return SUCCESS;
}

static int number(const struct device *device, const char *key, unsigned int *into) {
  unsigned long long found;
  int code = whole(device, key, &found);
  if (!code) *into = (unsigned int)found;
  return code;
}

static int text(const struct device *device, const char *key, char *into, unsigned int size) {
  const char *value;
  int code = answer(device, key, &value);
  if (code) return code;
  if (strlen(value) >= size) return INSUFFICIENT_SIZE;
  strcpy(into, value);
  return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags) {
  (void)flags;
  refresh();
  if (hang_s) sleep(hang_s);
  if (!init_code) started++;
  return init_code;
}

int nvmlShutdown(void) {
  if (!started) return UNINITIALIZED;
  started--;
  return SUCCESS;
}

const char *nvmlErrorString(int code) {
  switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case 9: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
  int code = begin();
  *count = (unsigned int)card_count;
  return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **device) {
  int code = begin();
  if (code) return code;
  if ((int)index >= card_count) return INVALID_ARGUMENT;
  struct device *found = &devices[index][MOST_INSTANCES];
  found->card = (int)index;
  found->instance = NONE;
  *device = found;
  const char *gone = fact_of(found, "gone");
  return gone && atoi(gone) ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned int size) {
  return text(device, "uuid", uuid, size);
}

int nvmlDeviceGetName(struct device *device, char *name, unsigned int size) {
  return text(device, "name", name, size);
}

int nvmlDeviceGetMinorNumber(struct device *device, unsigned int *minor) {
  return number(device, "minor", minor);
}

int nvmlDeviceGetUtilizationRates(struct device *device, unsigned int rates[2]) {
  rates[1] = 0;
  return number(device, "utilization", &rates[0]);
}

int nvmlDeviceGetMemoryInfo(struct device *device, unsigned long long memory[3]) {
  int code = whole(device, "memory_total", &memory[0]);
  if (!code) code = whole(device, "memory_used", &memory[2]);
  if (!code) memory[1] = memory[0] - memory[2];
  return code;
}

struct memory_v2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory) {
  unsigned long long told[3];
  int code = nvmlDeviceGetMemoryInfo(device, told);
  if (code) return code;
  memory->total = told[0];
  memory->used = told[2];
  memory->reserved = 0;
  memory->free = told[1];
  return SUCCESS;
}

int nvmlDeviceGetPowerUsage(struct device *device, unsigned int *milliwatts) {
  return number(device, "power", milliwatts);
}

int nvmlDeviceGetEnforcedPowerLimit(struct device *device, unsigned int *milliwatts) {
  return number(device, "power_limit", milliwatts);
}

int nvmlDeviceGetTotalEnergyConsumption(struct device *device, unsigned long long *millijoules) {
  return whole(device, "energy", millijoules);
}

int nvmlDeviceGetTemperature(struct device *device, int sensor, unsigned int *celsius) {
  return sensor ? INVALID_ARGUMENT : number(device, "temperature", celsius);
}

int nvmlDeviceGetClockInfo(struct device *device, int which, unsigned int *megahertz) {
  return number(device, which == 1 ? "clock_sm" : which == 2 ? "clock_memory" : "clock", megahertz);
}

int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *reasons) {
  return whole(device, "throttle", reasons);
}

int nvmlDeviceGetTotalEccErrors(struct device *device, int kind, int counter,
                                unsigned long long *count) {
  if (counter) return NOT_SUPPORTED;
  return whole(device, kind ? "ecc_uncorrected" : "ecc_corrected", count);
}

int nvmlDeviceGetPcieThroughput(struct device *device, int counter, unsigned int *kilobytes) {
  return number(device, counter ? "pcie_rx" : "pcie_tx", kilobytes);
}

struct field_value {
  uint32_t field, scope;
  int64_t time, latency;
  uint32_t kind;
  int32_t code;
  unsigned long long value;
};

int nvmlDeviceGetFieldValues(struct device *device, int count, struct field_value *values) {
  int code = begin();
  for (int i = 0; i < count && !code; i++) {
    const char *key = values[i].field == 138   ? "nvlink_tx"
                      : values[i].field == 139 ? "nvlink_rx"
                      : values[i].field == 91  ? "nvlink_count"
                      : values[i].field == 164 ? "nvlink_speed"
                      : values[i].field == 165 ? "nvlink_up"
                                               : "field";
    char of_link[32]; /* nvlink_up_3 holds for that link alone */
    snprintf(of_link, sizeof of_link, "%s_%u", key, values[i].scope);
    values[i].kind = 3; /* an unsigned long long */
    values[i].code = whole(device, of_link, &values[i].value);
    if (values[i].code == NOT_SUPPORTED && !(device && fact_of(device, of_link)))
      values[i].code = whole(device, key, &values[i].value);
    if (values[i].code == GPU_IS_LOST) code = GPU_IS_LOST;
  }
  return code;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned int *now, unsigned int *pending) {
  int code = number(device, "mig", now);
  if (!code) *pending = *now;
  return code;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned int *count) {
  unsigned int on;
  int code = number(device, "mig", &on);
  *count = !code && on ? MOST_INSTANCES - 1 : 0;
  return code == NOT_SUPPORTED ? SUCCESS : code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned int index,
                                        struct device **instance) {
  if (index >= MOST_INSTANCES) return INVALID_ARGUMENT;
  struct device *found = &devices[device->card][index];
  found->card = device->card;
  found->instance = (int)index;
  *instance = found;
  return fact_of(found, "uuid") ? SUCCESS : NOT_FOUND;
}

int nvmlEventSetCreate(void **set) {
  static int only;
  int code = begin();
  *set = &only;
  return code;
}

int nvmlEventSetFree(void *set) {
  (void)set;
  sets_freed++;
  return SUCCESS;
}

int nvmlDeviceRegisterEvents(struct device *device, unsigned long long kinds, void *set) {
  const char *events;
  (void)kinds;
  (void)set;
  int code = answer(device, "events", &events);
  return code == NOT_SUPPORTED ? SUCCESS : code;
}

struct event {
  struct device *device;
  unsigned long long kind, data;
  unsigned int gpu_instance, compute_instance;
};

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned int timeout_ms) {
  (void)set;
  (void)timeout_ms;
  int code = begin();
  if (code) return code;
  if (xid_told >= xid_count) return TIMEOUT;
  const struct device every = {EVERY, NONE};
  const char *deaf = fact_of(&every, "events_lost");
  if (deaf && atoi(deaf) && !sets_freed) return GPU_IS_LOST;
  int card = xids[xid_told][0];
  event->device = &devices[card][MOST_INSTANCES];
  event->device->card = card;
  event->device->instance = NONE;
  event->kind = 8; /* a critical XID */
  event->data = (unsigned long long)xids[xid_told++][1];
  event->gpu_instance = event->compute_instance = 0xffffffff;
  return SUCCESS;
}
