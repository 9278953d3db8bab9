/* The C interface of millpond, a stream-ordered caching GPU memory allocator. Made by cbindgen from plug/src: a test compares.
 *
 * A stream is a CUstream, which is a cudaStream_t; null is the legacy default stream. A pointer from here is device memory.
 * Every function but millpond_torch_alloc may be called from any thread at any time, and none lets a panic through. A code
 * other than MILLPOND_STATUS_OK says that nothing was changed (of millpond_free_after: that nothing was freed);
 * millpond_last_error has the words. That is: what is live, who uses it, limits, peaks of live bytes and who may free it stay as they were, of every
 * allocator. What a failed call may have done is noticed that work is over, so that less is in flight or held back, or that a
 * capture took what marked freed memory, so that this is held back; counted what it tried
 * (the miss ladder, driver calls); come to know a stream that it names for the first time; and, in a call that takes memory or gives it back
 * (create, alloc, alloc_pinned, trim, set_limit, synchronize, destroy, torch_empty_cache), moved idle memory between streams, or to the device and back.
 * Where a result goes, a failed create, alloc or alloc_pinned writes 0 or null, unless it is MILLPOND_STATUS_FORKED, and every other call nothing.
 * An allocation of an allocator with scrub=1 whose fill fails was live until then: peaks, and the counts of allocations and frees, have it.
 *
 * Somebody may capture a graph on any stream of the device, told to us or not. No call ends a capture but millpond_synchronize, by which the
 * caller says that nobody captures on the allocator's device. So a stream that was not declared permanent is marked
 * only in calls that name it, and a thread's default stream in calls of that thread and when the thread
 * ends, and in the frees of destructors that run later still, of pthread keys or of thread_local objects: what it freed there serves
 * others from then on, unless it ends while that stream captures, or its first call of all is made by a pthread key's destructor, behind
 * which no end is told, or the driver has no stream ids (before CUDA 12), so that nothing tells whether the stream is still there. Freed memory that no such call has marked yet serves its own stream and nobody else: it is held
 * back ("held_back" in the report) until its streams are named again, by any call, or at millpond_synchronize. What is freed by
 * nobody knows whom, or on a stream that ended before a call named it, comes back at millpond_synchronize only. A free that names its
 * stream (millpond_free_on, millpond_free_after) marks it there and holds nothing back, unless the driver refuses. Named again means: after a
 * request was refused for its sake, or by those two frees. Memory whose own stream was not declared is held back for that stream's sake too,
 * whoever else is named. What is not seen: a capture that another thread begins while a call of ours is under way, on a stream which that
 * call names, or on a blocking stream while the legacy default stream is marked: it may be lost, or what that stream freed is held back until it
 * is marked again. Begin a capture where no other thread calls for its stream; for which ones PyTorch's calls do that
 * do not name it: millpond_torch_record_stream.
 *
 * A program that captures nothing, or only on streams that it declared permanent, says so (captures=none, millpond_create), and has back at once
 * what is held back here for fear of a capture, but for what streams hold that may end.
 *
 * On a driver without stream ids (before CUDA 12) nothing tells a stream from the one that had its handle before: a call that names one
 * which was not declared permanent, nor is a default stream, answers MILLPOND_STATUS_DRIVER.
 *
 * A process that is forked from one that has an allocator, or has started CUDA to make one, can do nothing with it: every call there answers
 * MILLPOND_STATUS_FORKED and touches nothing, neither of the parent's nor of the driver's. Of PyTorch's calls those without a code do nothing and are counted in
 * millpond_torch_untold, and an allocation fails; that count, millpond_version and millpond_last_error answer as ever. At the end of a process nothing needs
 * to be freed: the driver takes everything back, work pending or not. dlclose unloads nothing (on Linux): allocators, memory and
 * what threads remember are as they were, and who opens the library again finds them. */

#ifndef MILLPOND_H
#define MILLPOND_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header; millpond_version() says the library's. A number that grows with it, for the preprocessor. */
#define MILLPOND_VERSION "0.1.0"
#define MILLPOND_VERSION_MAJOR 0
#define MILLPOND_VERSION_MINOR 1
#define MILLPOND_VERSION_PATCH 0
#define MILLPOND_VERSION_NUMBER (MILLPOND_VERSION_MAJOR * 1000000 + MILLPOND_VERSION_MINOR * 1000 + MILLPOND_VERSION_PATCH)

/*
 What a call came to. Every other code than `MILLPOND_STATUS_OK` says that nothing was changed, but for what the head of this file names.
 */
typedef enum {
  /*
   It was done.
   */
  MILLPOND_STATUS_OK = 0,
  /*
   Out of memory: `millpond_last_error` has the report; or more was asked for than one allocation can be.
   */
  MILLPOND_STATUS_OUT_OF_MEMORY = 1,
  /*
   The pointer is no live allocation: freed, never ours, or inside one.
   */
  MILLPOND_STATUS_UNKNOWN_POINTER = 2,
  /*
   The allocation, or the stream, is another allocator's or on another device.
   */
  MILLPOND_STATUS_WRONG_ALLOCATOR = 3,
  /*
   A null pointer, an option that is none, one allocator too many.
   */
  MILLPOND_STATUS_BAD_ARGUMENT = 4,
  /*
   No such allocator, or it was destroyed.
   */
  MILLPOND_STATUS_UNKNOWN_ALLOCATOR = 5,
  /*
   The stream captures a graph.
   */
  MILLPOND_STATUS_CAPTURING = 6,
  /*
   No driver, too old a driver, or no such device.
   */
  MILLPOND_STATUS_NO_DEVICE = 7,
  /*
   The driver failed.
   */
  MILLPOND_STATUS_DRIVER = 8,
  /*
   A defect of millpond: nothing is known of what was changed.
   */
  MILLPOND_STATUS_PANIC = 9,
  /*
   This process was forked from one that had an allocator, or had started CUDA to make one: CUDA does not work here.
   */
  MILLPOND_STATUS_FORKED = 10,
} millpond_status;

/*
 The name of an allocator; 0 is none.
 */
typedef uint32_t millpond_allocator;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Makes an allocator on a device. `options` is null or `NAME=VALUE,...` with the names limit, pinned_limit, policy, reuse,
 growth, deterministic, scrub, wait_ms, captures; what is not said comes from the environment (MILLPOND_LIMIT and so on).
 `captures=none` promises that nobody captures a graph on this device but on streams that were declared permanent, and on these not while another
 thread calls. Then what was freed by nobody knows whom, or on another thread's default stream, is marked when that is needed, which would end
 any other capture, and is not held back. It counts if no allocator of the device, ended or not, was made without it.
 `deterministic=1` asks no event whether it is over, so that the same calls have the same answers. What several streams used, and what was freed on
 streams that ended, is known to be over at a millpond_synchronize: without one such a program may take ever more memory, up to its limit.
 It holds where all allocators of the device are deterministic: they share what is known of streams, and another one's questions tell this one, too.
 A process can have 4096 at one time, ended ones of which memory is alive among them: the next one is BAD_ARGUMENT. How many it makes one after
 the other has no such end; but of those that end beside one call that lasts, such as a wait for a long kernel on another thread, none makes room before that call is over. A name is never another's.
 */
millpond_status millpond_create(int device,
                                const char *options,
                                millpond_allocator *out);

/*
 Ends an allocator: waits for all that is queued on the device and gives back what nobody has. It waits by events as far as these tell, then by freeing a page
 of pinned memory, which ends no capture; with captures=none it waits as millpond_synchronize. While the page is freed, other threads' launches stand in the driver:
 where work on a stream that was not declared waits for what another thread has yet to launch (collectives), synchronize that stream first, or end by
 millpond_release. What is alive can still be freed (and
 millpond_torch_record_stream still says who uses it), and millpond_trim and millpond_synchronize still give back what was; but for the calls that only look (millpond_find, the reports) everything else
 fails from now on. When nothing of it is alive any more, a later create lets it go, unless it is one of the 64 that ended last, and there is room: it is then as unknown as
 if it had never been made, and every call that names it is UNKNOWN_ALLOCATOR. With a code other than OK it was not ended: it works as before, and can be ended later.
 A free after the end waits no more than one before it. What it freed goes back to the device, if its work is complete, at the next create, trim,
 synchronize or destroy of whatever allocator in the process, a trim or synchronize of this one included (what is held
 back, and what a deterministic one had: synchronize or destroy of one of the same device). Other threads that called for it remember its streams, at most 16 and
 their own default stream, each with a driver event, until they end or call for others. Nothing else is left of events: those of permanent streams go
 back here, or at the millpond_synchronize by which the last of it goes back. One hold of the device's primary context is kept for
 all allocators of the device, ended ones too, to the end of the process: threads that remember streams of an ended one let go of them in the driver, when
 they end.
 */
millpond_status millpond_destroy(millpond_allocator allocator);

/*
 As millpond_destroy, and neither waits for the work of any stream nor ends a capture: for garbage collectors, and for whoever cannot know who captures
 just now. What is complete goes back to the device, where the driver may wait in its frees, and with scrub=1 behind the overwriting; the rest is owed as what is freed after a
 destroy. What is held back, and all of a deterministic one, is not known to be complete: millpond_synchronize of this one, or that or
 millpond_destroy of another one of the same device, gives it back. Beside a millpond_destroy that waits on another thread it ends the allocator at once,
 and the destroy answers UNKNOWN_ALLOCATOR when it has waited.
 */
millpond_status millpond_release(millpond_allocator allocator);

/*
 Bytes on a stream, aligned to 512, uninitialised, for work queued on the stream from now on. 0 bytes are a null pointer.
 The stream must be alive. From the cache it asks the driver whether the stream captures and, unless it is
 permanent, who it is; it makes no other call and waits for nothing. But a deterministic allocator, which asks no event, waits here for up to
 wait_ms, and 2 s at most, for streams that have ended, when dozens have; no free and no millpond_record_use does.
 */
millpond_status millpond_alloc(millpond_allocator allocator,
                               size_t bytes,
                               void *stream,
                               void **out);

/*
 Frees in the order of the allocation's own stream and of all recorded uses. Never waits for the device, nor if the allocator was
 destroyed: then it goes back later (see millpond_destroy). Of streams that were not declared permanent it is held back from others until they are named again. Null is
 nothing.
 */
millpond_status millpond_free(millpond_allocator allocator,
                              void *ptr);

/*
 As millpond_free, and behind what `stream` holds: for a free on another stream than the allocation's, or on its own if that may
 end. A stream that was not declared permanent is marked here; where the driver refuses that, it is freed all the same and held back until the stream is named again.
 */
millpond_status millpond_free_on(millpond_allocator allocator,
                                 void *ptr,
                                 void *stream);

/*
 As millpond_free, and behind everything that any stream of the device holds: when nobody can say who used it. Held back until
 millpond_synchronize.
 */
millpond_status millpond_free_unknown(millpond_allocator allocator,
                                      void *ptr);

/*
 As millpond_free, and behind what each of `n` streams holds: when it is known who may have used it, but not who did. All of
 them are alive, the allocation's own may be among them. With a code other than OK it frees nothing. If one of them captures nothing is
 changed either; if one is another device's, or the driver fails, the uses of those before it may stay recorded: a later free comes
 back behind what they hold then, and to name them all again is as if it were the first time. Those that were not declared permanent are marked here, as
 millpond_free_on has it.
 */
millpond_status millpond_free_after(millpond_allocator allocator,
                                    void *ptr,
                                    void *const *streams,
                                    size_t n);

/*
 Work on `stream`, queued by now or before the free, uses the allocation: its bytes come back behind that.
 Of a thread's own default stream that is what is queued before the thread ends: a use is closed there, and what destructors that run later queue, of
 pthread keys or of thread_local objects, may not be covered. A use of null is nothing.
 */
millpond_status millpond_record_use(millpond_allocator allocator,
                                    void *ptr,
                                    void *stream);

/*
 Pinned host memory, aligned to 512, from the cache of pinned segments. 0 bytes are a null pointer. May pin more, and wait
 for what is in flight when the limit is reached.
 */
millpond_status millpond_alloc_pinned(millpond_allocator allocator,
                                      size_t bytes,
                                      void **out);

/*
 Frees pinned memory: it is handed out again when all recorded uses are complete. Never waits, as millpond_free. Null is nothing.
 */
millpond_status millpond_free_pinned(millpond_allocator allocator,
                                     void *ptr);

/*
 As millpond_free_pinned, and when everything that any stream of the device holds is complete: when nobody can say which
 copies use it. Held back until millpond_synchronize.
 */
millpond_status millpond_free_pinned_unknown(millpond_allocator allocator, void *ptr);

/*
 A copy on `stream`, queued by now or before the free, uses the pinned memory. Of a thread's own default stream as millpond_record_use. A use of null is nothing.
 */
millpond_status millpond_record_pinned_use(millpond_allocator allocator,
                                           void *ptr,
                                           void *stream);

/*
 The stream is never destroyed while the process lives: its handle alone says who it is, and a call asks the driver
 at most whether it captures. It is marked whenever that is needed, unless it captures.
 It may be declared at any time, by one allocator of the device for all: what it held back until then is marked when that is
 needed. Who declares a stream and destroys it all the same loses what was freed there: it is held until the end of the allocator,
 and other streams' memory is had as before. Declared again it is asked who it is: MILLPOND_STATUS_BAD_ARGUMENT if another stream has the handle,
 MILLPOND_STATUS_CAPTURING while it captures.
 */
millpond_status millpond_declare_permanent(millpond_allocator allocator,
                                           void *stream);

/*
 The live allocation that an address lies in: its first byte and its length as asked for. Slow.
 */
millpond_status millpond_find(millpond_allocator allocator, const void *ptr, void **begin, size_t *bytes);

/*
 Gives idle memory back to the device, as far as it is known complete. `freed`, if not null, is how many bytes that was. May wait
 for the device in the driver's frees, which end no capture. Of a destroyed allocator that is what was freed after its end.
 */
millpond_status millpond_trim(millpond_allocator allocator,
                              size_t *freed);

/*
 How much may be taken of the device: `6GiB`, a number of bytes, `40%`, `none`.
 */
millpond_status millpond_set_limit(millpond_allocator allocator, const char *limit);

/*
 Waits for the device, and takes back what it is done with, what was held back included. Not while anybody captures a graph: the
 driver refuses then, and the capture is lost; but one of a stream that was declared permanent is looked for first, and lives.
 Of a destroyed allocator, all that was freed of it goes back to the device. So this is how a program says that the device is quiet:
 where it is, the wait comes back at once, and there is no call that says so without one.
 */
millpond_status millpond_synchronize(millpond_allocator allocator);

/*
 Sets the peaks of the report to the present values.
 */
millpond_status millpond_reset_peaks(millpond_allocator allocator);

/*
 What the pools hold, as JSON. Writes at most `room` bytes, the last of them a zero; `needed`, if not null, is how many the
 whole takes, its zero included.
 */
millpond_status millpond_stats_json(millpond_allocator allocator,
                                    char *to,
                                    size_t room,
                                    size_t *needed);

/*
 What the pools hold, for people. As millpond_stats_json.
 */
millpond_status millpond_report(millpond_allocator allocator, char *to, size_t room, size_t *needed);

/*
 What the calling thread's last failure was, in words: asked, found, what to do. Valid until its next failure; never null.
 */
const char *millpond_last_error(void);

/*
 The library's version.
 */
const char *millpond_version(void);

/*
 The allocator that PyTorch's calls for a device go to; made with `options` (see millpond_create) if they are not null, and
 then it may not exist yet.
 */
millpond_status millpond_torch_allocator(int device,
                                         const char *options,
                                         millpond_allocator *out);

/*
 PyTorch's `malloc`: throws c10::OutOfMemoryError, or std::bad_alloc without PyTorch, with the report; and where it is refused for another reason,
 as on a stream that captures a graph, c10::Error, or std::runtime_error.
 */
void *millpond_torch_alloc(size_t size,
                           int device,
                           void *stream);

/*
 PyTorch's `free`, on the stream of the allocation. One that work on another device keeps from being made now (see
 millpond_torch_record_stream) counts as a call that failed, and is made later: the memory is nobody's until then, and its pointer is no allocation's.
 */
void millpond_torch_free(void *ptr,
                         size_t _size,
                         int device,
                         void *stream);

/*
 PyTorch's `record_stream`. Of another device's stream too, if PyTorch has an allocator there; but a default stream's handle, which is null,
 means the one of the pointer's device. Another device's stream must be alive until the memory is freed: the free calls for it; and so must one of whatever
 device that was not declared permanent and captures when it is named. One that has ended
 all the same, and one that captures then or cannot be asked because the driver fails, keeps the memory from being freed: a later
 millpond_torch_free calls for it again, of whatever memory on whatever thread, and so does a millpond_torch_alloc that is out of memory, until it answers; a wait for its device frees
 the memory too, and calls for no stream: millpond_torch_empty_cache, or millpond_synchronize or millpond_destroy of an allocator there. Other functions that free such memory
 refuse while they cannot record the use; but millpond_free_unknown behind a stream that has ended is OK, and frees as late. Of a stream that captures here and was not declared permanent nobody can tell which device it is of: where
 PyTorch has no allocator on that device, the use is not known, and not counted.
 */
void millpond_torch_record_stream(void *ptr,
                                  void *stream);

/*
 PyTorch's `empty_cache`, for all devices: waits for them first, as PyTorch's own does, in the way of millpond_destroy, which ends no capture. While it
 frees its page other threads' launches stand: where queued work waits for what another thread has yet to launch (collectives), synchronize its stream first.
 */
void millpond_torch_empty_cache(void);

/*
 PyTorch's `set_per_process_memory_fraction`.
 */
void millpond_torch_memory_fraction(double fraction, int device);

/*
 PyTorch's `getBaseAllocation`: where the allocation of an address begins, and how long it is.
 */
void *millpond_torch_base(void *ptr, size_t *size);

/*
 How many calls failed with nobody to tell: millpond_last_error on their thread had the words.
 */
uint64_t millpond_torch_untold(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MILLPOND_H */
