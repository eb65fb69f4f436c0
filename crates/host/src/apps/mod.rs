//! The apps of a run: started or found, and which threads they have now.
