//! One phone.
use epwatch_fleet::Chipset;
#[derive(Debug, Clone, Copy)]
pub(super) struct Phone {
    pub(super) chipset: Chipset,
}
impl Phone {
    pub(super) const ALL: [Phone; 2] = [
        Phone {
            chipset: Chipset::Sm8650,
        },
        Phone {
            chipset: Chipset::Sm8635,
        },
    ];
}
