/* Stands in for NVIDIA's driver, which no machine without a GPU has: device memory is the host's, and every block's size is kept, so
   that what reads or writes beyond it is refused. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 65536
static struct { uint64_t at; size_t size; } blocks[BLOCKS];
static int used;

size_t stand_in_room(uint64_t at) {
  for (int i = 0; i < used; i++) if (blocks[i].at == at) return blocks[i].size;
  return 0;
}
int stand_in_blocks(void) {
  int live = 0;
  for (int i = 0; i < used; i++) live += blocks[i].at != 0;
  return live;
}
int cuInit(unsigned flags) { return getenv("STAND_IN_NO_GPU") ? 100 : 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 1; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)2; return 0; }
int cuStreamSynchronize(void *stream) { return stream == (void *)2 ? 0 : 1; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "stand-in GPU", length); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (attribute != 75 && attribute != 76) return 1;
  *value = attribute == 75 ? 9 : 0;
  return 0;
}
int cuMemAlloc_v2(uint64_t *at, size_t size) {
  if (size == 0 || used == BLOCKS) return 1;
  *at = (uint64_t)(uintptr_t)malloc(size);
  blocks[used].at = *at; blocks[used].size = size; used++;
  return 0;
}
int cuMemFree_v2(uint64_t at) {
  for (int i = 0; i < used; i++) if (blocks[i].at == at) { free((void *)(uintptr_t)at); blocks[i].at = 0; return 0; }
  return 1;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  if (stand_in_room(to) < size) return 1;
  memcpy((void *)(uintptr_t)to, from, size);
  return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  if (stand_in_room(from) < size) return 1;
  memcpy(to, (void *)(uintptr_t)from, size);
  return 0;
}
