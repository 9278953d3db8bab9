//! What replays: the language of programs in its written forms, generated and shrunk programs, imports, and both kinds of replay. One
//! binary, so that the allocator is compiled for the simulated device once.

mod codec;
mod import;
mod logs;
mod programs;
mod windows;
